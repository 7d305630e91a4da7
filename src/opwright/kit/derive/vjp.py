"""The vector-Jacobian product of a function, wherever the dispatcher may be when it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from opwright.kit import private
from opwright.kit.spec import draws, probe
from opwright.kit.spec.values import has_gradient, has_values, tensors


def vjp(
    function: Callable[..., Sequence[Tensor | None]],
    primals: list[Tensor],
    cotangents: Sequence[Tensor | None],
    refuse_constant: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """The gradients of `function` at `primals`, given a cotangent for each of its results (None: no gradient). They
    are zeros where no result depends on the primals, unless `refuse_constant` raises then."""
    if not primals:
        return []
    if all(c is None for c in cotangents):
        return [torch.zeros_like(p) for p in primals]
    if _transformed():
        return _traced_vjp(function, primals, cotangents)
    return _plain_vjp(function, primals, cotangents, refuse_constant)


def below_autograd() -> bool:
    """Whether the dispatcher is below autograd: in a kernel, or a fake one, where nobody records."""
    excluded: bool = private.key_is_excluded(private.DispatchKey.AutogradOther)
    return excluded


def _transformed() -> bool:
    """Whether a transform of torch.func, forward-mode AD or Dynamo is looking on."""
    if torch.compiler.is_dynamo_compiling():
        return True
    if below_autograd():
        return False
    stack = private.innermost_transform()
    return stack is not None or private.forward_level() >= 0


def differentiated(given: Sequence[Tensor]) -> bool:
    """Whether somebody may differentiate what is now computed from these tensors, step by step."""
    if below_autograd():
        return False
    differentiating = (private.TransformType.Grad, private.TransformType.Jvp)
    if any(layer.key() in differentiating for layer in _stack()) or private.forward_level() >= 0:
        return True
    batched = private.is_legacy_batched
    return torch.is_grad_enabled() and any(t.requires_grad or batched(t) for t in given)


def _traced_vjp(
    function: Callable[..., Sequence[Tensor | None]], primals: list[Tensor], cotangents: Sequence[Tensor | None]
) -> list[Tensor]:
    present: list[int] = []  # a result may be absent that somebody has a gradient for

    def wanted_outputs(*values: Tensor) -> tuple[Tensor, ...]:
        outs = function(*values)
        present[:] = [
            i for i, (o, c) in enumerate(zip(outs, cotangents, strict=True)) if c is not None and o is not None
        ]
        return tuple(o for i in present if (o := outs[i]) is not None)

    pull = torch.func.vjp(wanted_outputs, *primals)[1]
    if not present:
        return [torch.zeros_like(p) for p in primals]
    return list(pull(tuple(cotangents[i] for i in present)))


def _plain_vjp(
    function: Callable[..., Sequence[Tensor | None]],
    primals: list[Tensor],
    cotangents: Sequence[Tensor | None],
    refuse_constant: Callable[[], None],
) -> list[Tensor]:
    before = None if probe.wrapped() else draws.states(primals)
    recording = torch.is_grad_enabled() and not below_autograd()
    recording = recording and any(t is not None and t.requires_grad for t in (*primals, *cotangents))
    with torch.inference_mode(False), torch.enable_grad(), above_autograd():
        leaves = [_leaf(p, recording) for p in primals]
        outs = function(*leaves)
        pairs = [
            (o, c.clone() if c.is_inference() else c)
            for o, c in zip(outs, cotangents, strict=True)
            if o is not None and c is not None and o.requires_grad
        ]
        if not pairs:
            refuse_constant()
            return [torch.zeros_like(p) for p in primals]
        results, incoming = zip(*pairs, strict=True)
        # In this thread, not in the engine's own for a GPU, which knows nothing of the modes that are active here.
        with torch.autograd.set_multithreading_enabled(False):
            grads = torch.autograd.grad(results, leaves, incoming, create_graph=recording, allow_unused=True)
            if any(g is None for g in grads):
                refuse_errors([o.grad_fn for o in results])
    if before is not None and not draws.same(before, draws.states(primals)):
        _refuse_draws(function, primals)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(primals, grads, strict=True)]


def refuse_errors(nodes: list[Any]) -> None:
    """Raise what stands in a graph in a derivative's place. It leads to no input, and autograd would pass it by."""
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is not None and node.name().endswith(("::Error", "::NotImplemented")):
            try:
                node(torch.zeros(()))
            except RuntimeError as e:
                # Where torch.export decomposes, operators that it keeps have no derivatives, and need none.
                if not str(e).startswith("Autograd not implemented for"):
                    raise
        behind = {n for n, _ in getattr(node, "next_functions", ())} - seen
        seen |= behind
        nodes += behind


UNSEEN = "a function that it cannot see"


def where_history_ends(run: Callable[..., Sequence[Tensor | None]], primals: Sequence[Tensor]) -> str:
    """Where the history of a function's results ends though it was not meant to; empty when there is no such place.
    Steps end in whole numbers or truth values, and detach means to, unless NumPy goes on from there."""
    ends, leaves = _Ends(), [t.detach().requires_grad_() for t in primals]
    with ends:
        here = run(*leaves)
    if ends.seen or ends.meant or not all(has_values(t) for t in here if t is not None):
        return ends.seen
    # What PyTorch does not see has no history either. It moves at every turn, a step at most once.
    first, second = (run(*((t.detach() * (1 + d) + d).requires_grad_() for t in primals)) for d in (0.001, 0.002))
    return UNSEEN if _moved(here, first) and _moved(first, second) else ""


def _moved(before: Sequence[Tensor | None], after: Sequence[Tensor | None]) -> bool:
    """Whether most elements of a result have changed."""
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    return any(a.shape == b.shape and a.numel() and (a != b).double().mean().item() > 0.5 for a, b in pairs)


class _Ends(TorchFunctionMode):
    MEANT = ("detach", "_like", "new_", "__get__", "sign", "floor", "ceil", "round", "trunc")
    LEAVING = ("numpy", "__array__", "tolist", "__dlpack__")
    """What hands values to code that PyTorch does not see, detached first or not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""
        self.meant = False
        self._from_inputs: dict[int, Tensor] = {}
        """What was made of inputs and has no history."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        given = tensors([*args, *(kwargs or {}).values()])
        followed = any(t.requires_grad for t in given)
        reached = followed or any(id(t) in self._from_inputs for t in given)
        self._from_inputs |= {id(t): t for t in tensors(out) if reached and not t.requires_grad}
        ended = [t for t in tensors(out) if has_gradient(t) and not t.requires_grad]
        if followed and ended and torch.is_grad_enabled():
            meant = any(word in name for word in self.MEANT)
            self.meant = self.meant or meant
            self.seen = self.seen or ("" if meant else name)
        if name in self.LEAVING and reached and any(has_gradient(t) for t in given):
            self.seen = self.seen or UNSEEN
        return out


def _refuse_draws(function: Callable[..., Sequence[Tensor | None]], primals: list[Tensor]) -> None:
    """Raise if it was the function that drew random numbers, and not another thread."""
    with torch.no_grad():
        drew = draws.culprit(lambda: function(*primals), lambda: draws.states(primals))
    if drew:
        raise probe.BadReference(
            f"a gradient was to be derived from a reference that draws random numbers ({drew}), and would have "
            f"drawn others; declare the operator with @ow.op(random=True)"
        )


def _leaf(p: Tensor, recording: bool) -> Tensor:
    """A tensor to differentiate with respect to; when recording, one that leads on to `p` itself."""
    if recording and p.requires_grad:
        return p.view_as(p)
    return (p.clone() if p.is_inference() else p.detach()).requires_grad_()


@contextlib.contextmanager
def above_autograd() -> Iterator[None]:
    """Lets autograd record inside a kernel that the dispatcher called below autograd, and torch.func transform."""
    with _reopened(_AUTOGRAD_KEYS + ([] if _stack() else _TRANSFORM_KEYS)):
        yield


def open_to_transforms() -> contextlib.AbstractContextManager[None]:
    """Lets a function use torch.func inside a kernel that the dispatcher called below it, as compiled graphs do."""
    excluded = private.key_is_excluded(_TRANSFORM_KEYS[0])
    return _reopened(_TRANSFORM_KEYS) if excluded and not _stack() else contextlib.nullcontext()


@contextlib.contextmanager
def _reopened(keys: list[Any]) -> Iterator[None]:
    include = private.included_keys()
    exclude = private.excluded_keys()
    for key in keys:
        exclude = exclude.remove(key)
    with private.ForceDispatchKeyGuard(include, exclude):
        yield


def _stack() -> list[Any]:
    """The transforms of torch.func that are under way."""
    return private.transforms() or []


def _keys(*names: str) -> list[Any]:
    return [getattr(private.DispatchKey, name) for name in names if hasattr(private.DispatchKey, name)]


# With what some derivatives are written in: the zeros of sgn's have no memory, and where DTensor calls a kernel nobody
# would look before reading it.
_AUTOGRAD_KEYS = _keys(
    "AutogradOther", "AutogradFunctionality", "AutogradNestedTensor", "ADInplaceOrView",
    "ZeroTensor", "Conjugate", "Negative",
)  # fmt: skip
_TRANSFORM_KEYS = _keys(
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "FuncTorchBatched",
    "FuncTorchVmapMode",
    "FuncTorchGradWrapper",
)
