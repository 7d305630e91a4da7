"""What was written without opwright, run as the kernel of an operator: its forward, and its backward with what that
forward kept.

What it keeps may be anything: tensors of any shape, a graph of PyTorch's, objects. A gradient operator takes tensors.
So the form that saves returns one tensor that stands for all of it, and whose memory lives as long as somebody may want
the gradient; what was kept hangs on that memory. Where the tensor is another (the reference ran, somebody copied it),
there is nothing kept for it, and the gradient is derived from the inputs.
"""

from __future__ import annotations

import ctypes
import inspect
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.derive.vjp import above_autograd
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.values import has_gradient, tensors

KEPT = "kept"
"""The extra result that stands for what was kept."""


class _Memory(ctypes.c_int64 * 1):  # type: ignore[misc]
    """The memory of such a tensor, which PyTorch holds as long as it uses it."""

    state: Any


_alive: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()


def keep(state: Any) -> Tensor:
    """A tensor that stands for a state, and holds it."""
    memory = _Memory()
    memory.state = state
    _alive[ctypes.addressof(memory)] = memory
    return torch.frombuffer(memory, dtype=torch.int64)


def nothing() -> Tensor:
    """What looks the same and stands for nothing."""
    return torch.zeros(1, dtype=torch.int64, device="cpu")


def kept(tensor: Tensor) -> Any:
    """What a tensor stands for; None: nothing."""
    memory = _alive.get(tensor.data_ptr()) if type(tensor) is Tensor and tensor.device.type == "cpu" else None
    return None if memory is None else memory.state


class Recorded:
    """A function whose calls autograd records: of torch.autograd.Function, of torch.library, or any other."""

    def __init__(self, name: str, signature: Signature, function: Callable[..., Any]) -> None:
        self.name, self.signature, self.function = name, signature, function
        self.named = by_name(function, signature)

    def original(self, values: Mapping[str, Any]) -> list[Tensor]:
        """What it gives, with whatever history it gives it."""
        args, named = arranged(self.signature, values, self.named)
        before = _versions(values)
        out = self.function(*args, **named)
        _refuse_written(self.name, values, before)
        return flat(self.name, self.signature, out)

    def forward(self, values: Mapping[str, Any]) -> list[Tensor]:
        """Its outputs alone."""
        with torch.inference_mode(False), torch.no_grad(), above_autograd():
            return own(self.original({n: _usual(v) for n, v in values.items()}), values)

    def saving(self, values: Mapping[str, Any]) -> tuple[list[Tensor], Any]:
        """Its outputs, and what autograd recorded of them."""
        followed = {p.name for p in self.signature.differentiable_inputs}
        given = [t for name in followed for t in tensors(values[name])]
        # As its caller has them, so that it computes no gradient that nobody wants; all where the caller does not say.
        some = any(t.requires_grad for t in given)
        with torch.inference_mode(False), torch.enable_grad(), above_autograd():
            leaves = {n: _leaves(v, some) if n in followed else _usual(v) for n, v in values.items()}
            outs = self.original(leaves)
        self._refuse_unrecorded(leaves, outs)
        return own([t.detach() for t in outs], values), (leaves, outs)

    def _refuse_unrecorded(self, leaves: Mapping[str, Any], outs: Sequence[Tensor]) -> None:
        """Raise where autograd has recorded nothing: every gradient would be zero, without a word. Results of integers
        and Booleans have none, whatever computes them."""
        followed = [outs[i] for i in self.signature.differentiable_outputs if has_gradient(outs[i])]
        if not followed:
            return
        nodes = [t.grad_fn for t in followed if t.requires_grad]
        if nodes and not any(map(_only_warns, nodes)):
            return
        if any(t.requires_grad for p in self.signature.differentiable_inputs for t in tensors(leaves[p.name])):
            raise TypeError(
                f"{self.name}: autograd records nothing of what was adopted, so it has no gradient; give ow.adopt its "
                f"backward=…, or the torch.autograd.Function around it"
            )

    def backward(self, state: Any, grads: Sequence[Tensor | None], wanted: Sequence[bool], _: Any) -> list[Any] | None:
        """The gradients of its inputs, as autograd finds them. None: it has not recorded all that is asked for, such as
        the tensors of a list, which a torch.autograd.Function does not follow."""
        leaves, outs = state
        inputs = self.signature.differentiable_inputs
        asked = [
            t for p, w in zip(inputs, wanted, strict=True) if w for t in tensors(leaves[p.name]) if has_gradient(t)
        ]
        chosen = [outs[i] for i in self.signature.differentiable_outputs]
        with torch.inference_mode(False), torch.enable_grad(), above_autograd():
            pairs = [(o, _usual(g)) for o, g in zip(chosen, grads, strict=True) if g is not None]
            results = [o for o, _ in pairs]
            recorded = [o for o in chosen if o.requires_grad]
            if not all(o.requires_grad for o in results) or not _reached(recorded, asked):
                return None
            found: Sequence[Tensor | None] = [None] * len(asked)
            if pairs and asked:
                with torch.autograd.set_multithreading_enabled(False):
                    incoming = [g for _, g in pairs]
                    found = torch.autograd.grad(results, asked, incoming, retain_graph=True, allow_unused=True)
        by_leaf = {id(t): torch.zeros_like(t) if g is None else g.detach() for t, g in zip(asked, found, strict=True)}
        return [_gradient(leaves[p.name], by_leaf) if w else None for p, w in zip(inputs, wanted, strict=True)]


class Pair:
    """Two functions, the second of which takes what the first returns beside the outputs."""

    def __init__(
        self,
        name: str,
        signature: Signature,
        functions: tuple[Callable[..., Any], Callable[..., Any]],
        names: tuple[Sequence[str], Sequence[str], Sequence[str]],
        results: Sequence[str],
        grads: Sequence[str],
    ) -> None:
        self.name, self.signature, self.grads = name, signature, grads
        self._forward, self._backward = functions
        self.saves, self.takes, self.gives = names
        self.results = results
        self.named = by_name(functions[0], signature)
        self._function: Any = None

    def original(self, values: Mapping[str, Any]) -> list[Tensor]:
        """What the two give as a torch.autograd.Function, as extensions join them."""
        if self._function is None:
            self._function = _joined(self)
        out = self._function.apply(*(values[p.name] for p in self.signature.parameters))
        return [out] if isinstance(out, Tensor) else list(out)

    def run(self, values: Mapping[str, Any]) -> list[Tensor]:
        """All that the first function returns."""
        args, named = arranged(self.signature, values, self.named)
        before = _versions(values)
        out = self._forward(*args, **named)
        _refuse_written(self.name, values, before)
        found = [out] if isinstance(out, Tensor) else list(out) if isinstance(out, (tuple, list)) else []
        count = len(self.signature.outputs) + len(self.saves)
        if len(found) != count or not all(isinstance(t, Tensor) for t in found):
            raise TypeError(
                f"{self.name}: what was adopted returned {_described(out)}; it must return {count} tensors, its outputs"
                + (f" and then {', '.join(self.saves)}" if self.saves else "")
            )
        return found

    def forward(self, values: Mapping[str, Any]) -> list[Tensor]:
        """Its outputs alone."""
        with torch.no_grad():
            return own(self.run(values)[: len(self.signature.outputs)], values)

    def saving(self, values: Mapping[str, Any]) -> tuple[list[Tensor], Any]:
        """Its outputs, and all that it returned."""
        with torch.no_grad():
            found = self.run(values)
        # Not the outputs themselves: what leads to the gradient must not be held by what that keeps.
        outs = own([t.detach() for t in found[: len(self.signature.outputs)]], values)
        return outs, (found, [_version(t) for t in found])

    def backward(
        self, state: Any, grads: Sequence[Tensor | None], wanted: Sequence[bool], values: Mapping[str, Any]
    ) -> list[Any]:
        """The gradients that the second function gives."""
        returned, versions = state
        for name, t, version in zip((*self.results, *self.saves), returned, versions, strict=True):
            if name in self.takes and _version(t) != version:
                raise RuntimeError(
                    f"{self.name}: its backward takes {name}, which has been modified by an inplace operation since "
                    f"the forward: it is at version {_version(t)}, expected version {version}; write to a clone"
                )
        incoming = [
            torch.zeros_like(returned[i]) if g is None else g
            for i, g in zip(self.signature.differentiable_outputs, grads, strict=True)
        ]
        with torch.no_grad():
            found = self.gradients(values, returned, incoming)
        inputs = self.signature.differentiable_inputs
        return [found.get(p.name) if w else None for p, w in zip(inputs, wanted, strict=True)]

    def gradients(
        self, values: Mapping[str, Any], returned: Sequence[Tensor], incoming: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """What the second function returns, by the inputs that it is for."""
        known = {**dict(zip((*self.results, *self.saves), returned, strict=True)), **values}  # an input's name first
        known |= dict(zip(self.grads, incoming, strict=True))
        out = self._backward(*(known[name] for name in self.takes))
        found = [out] if isinstance(out, Tensor) else list(out) if isinstance(out, (tuple, list)) else []
        if len(found) != len(self.gives):
            raise TypeError(
                f"{self.name}: the backward that was adopted returned {_described(out)}; it must return "
                f"{len(self.gives)} gradients, of {', '.join(self.gives)}"
            )
        return dict(zip(self.gives, found, strict=True))


def _joined(pair: Pair) -> Any:
    """The two functions as extensions join them: what the first returns is saved, the second is called with it."""

    class Joined(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            values = dict(zip((p.name for p in pair.signature.parameters), args, strict=True))
            found = pair.run(values)
            ctx.others = {n: v for n, v in values.items() if not isinstance(v, Tensor)}
            ctx.named = [n for n in values if n not in ctx.others]
            ctx.save_for_backward(*found, *(values[n] for n in ctx.named))
            outs = found[: len(pair.signature.outputs)]
            return outs[0] if len(outs) == 1 else tuple(outs)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            count = len(pair.signature.outputs) + len(pair.saves)
            kept = ctx.saved_tensors  # asked for once: a checkpoint hands out nothing twice
            found, given = kept[:count], kept[count:]
            values = {**ctx.others, **dict(zip(ctx.named, given, strict=True))}
            incoming = [grads[i] for i in pair.signature.differentiable_outputs]
            by_name = pair.gradients(values, found, incoming)
            return tuple(by_name.get(p.name) for p in pair.signature.parameters)

    return Joined


def operators(function: Any) -> list[Any]:
    """What a function is in the dispatcher: an operator of torch.ops, in all its overloads, or of
    torch.library.custom_op; nothing of any other."""
    known = getattr(function, "_opoverload", function)  # of torch.library.custom_op
    if isinstance(known, private.OpOverloadPacket):
        return [getattr(known, each) for each in known.overloads()]
    return [known] if isinstance(known, private.OpOverload) else []


def by_name(function: Any, signature: Signature) -> frozenset[str]:
    """The parameters of the reference that what was adopted takes by name alone."""
    found = operators(function)
    if found:
        alone = {a.name for each in found for a in each._schema.arguments if a.kwarg_only}
        return frozenset(p.name for p in signature.parameters if p.keyword_only or p.name in alone)
    try:
        taken = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C++, which has none
        return frozenset()
    alone = {p.name for p in taken if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return frozenset(alone & set(signature.names))


def arranged(
    signature: Signature, values: Mapping[str, Any], named: Collection[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in the order of the reference: what was adopted takes them by position, but for some."""
    return [values[p.name] for p in signature.parameters if p.name not in named], {n: values[n] for n in named}


def flat(name: str, signature: Signature, out: Any) -> list[Tensor]:
    """What was returned, one tensor for each output."""
    found = [out] if isinstance(out, Tensor) else list(out) if isinstance(out, (tuple, list)) else []
    if len(found) != len(signature.outputs) or not all(isinstance(t, Tensor) for t in found):
        count = len(signature.outputs)
        raise TypeError(f"{name}: what was adopted returned {_described(out)}; its reference returns {count} tensors")
    return found


def _described(out: Any) -> str:
    return f"{len(out)} results" if isinstance(out, (tuple, list)) else type(out).__name__


def own(outs: Sequence[Tensor], values: Mapping[str, Any]) -> list[Tensor]:
    """Results in memory of their own: what was adopted may return an argument, or two results that share memory; an
    operator may not."""
    taken = {a.untyped_storage().data_ptr() for value in values.values() for a in tensors(value) if a.numel()}
    found = []
    for t in outs:
        place = t.untyped_storage().data_ptr() if t.numel() else None
        found.append(t.clone() if place in taken else t)
        taken |= set() if place is None else {place}
    return found


def _version(t: Tensor) -> int:
    """How often it has been written to; tensors of inference mode do not count."""
    return 0 if t.is_inference() else t._version


def _versions(values: Mapping[str, Any]) -> list[int]:
    return [_version(t) for value in values.values() for t in tensors(value)]


def _refuse_written(name: str, values: Mapping[str, Any], before: Sequence[int]) -> None:
    """Raise where what was adopted has written to an argument: a reference that does not would be another function."""
    if _versions(values) == before:
        return
    now = [(n, _version(t)) for n, value in values.items() for t in tensors(value)]
    written = next(n for (n, version), was in zip(now, before, strict=True) if version != was)
    raise RuntimeError(
        f"{name}: what was adopted has written to its argument {written}, which its reference does not; write to a "
        f"clone in it, or make an operator with @ow.op(mutates=…)"
    )


def _only_warns(node: Any) -> bool:
    """Whether a node stands for an operator that nobody wrote a derivative for: PyTorch warns, and gives nothing."""
    return node is not None and bool(node.name().endswith("WarnNotImplemented"))


def _reached(results: Sequence[Tensor], leaves: Sequence[Tensor]) -> bool:
    """Whether the history of some of the results leads to each of the leaves, and tells the whole derivative."""
    missing = {id(t) for t in leaves if t.is_leaf and t.requires_grad}
    if len(missing) < len({id(t) for t in leaves}):
        return False  # what nobody followed
    waiting: list[Any] = [t.grad_fn for t in results]
    missing -= {id(t) for t in results}
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if _only_warns(node):
            return False
        missing.discard(id(getattr(node, "variable", None)))
        behind = {n for n, _ in getattr(node, "next_functions", ())} - seen
        seen |= behind
        waiting += behind
    return not missing


def _usual(value: Any) -> Any:
    """A value that autograd may save: not a tensor of inference mode."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    return [_usual(v) for v in value] if isinstance(value, (list, tuple)) and tensors(value) else value


def _leaves(value: Any, some: bool) -> Any:
    """A value to differentiate with respect to. `some`: of the tensors, those that require it."""
    if isinstance(value, Tensor):
        usual = _usual(value).detach()
        return usual.requires_grad_() if has_gradient(usual) and (value.requires_grad or not some) else usual
    return [_leaves(v, some) for v in value] if isinstance(value, (list, tuple)) else value


def _gradient(value: Any, by_leaf: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return by_leaf.get(id(value))
    if value is None:
        return None
    return [by_leaf[id(t)] if id(t) in by_leaf else torch.zeros_like(t) for t in value]
