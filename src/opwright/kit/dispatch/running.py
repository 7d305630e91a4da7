"""What stands behind an operator's name in the dispatcher: its reference, or the kernel whose domain holds the call."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import private
from opwright.kit.derive.roles import Gradient
from opwright.kit.derive.vjp import above_autograd, below_autograd, open_to_transforms
from opwright.kit.derive.vjp import differentiated as somebody_differentiates
from opwright.kit.dispatch import registry, short, writing
from opwright.kit.dispatch.call import describe
from opwright.kit.dispatch.kernel import Kernel, device_of
from opwright.kit.spec import probe
from opwright.kit.spec.captured import named
from opwright.kit.spec.values import has_gradient, tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op
    from opwright.kit.spec.schema import Output

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def reference(op: Op[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """The reference; its results are memory of their own."""
    values = op.signature.bind(args, kwargs)
    given = [(name, t) for name, value in values.items() for t in tensors(value)]
    versions = probe.read_versions(given)
    if isinstance(op.role, Gradient):
        out = _gradient(op, op.role, values, args, kwargs)
    elif below_autograd() and any(t.layout != torch.strided for _, t in given):
        with torch.no_grad(), above_autograd():  # where PyTorch's own arithmetic on sparse tensors fails less
            out = op.calls.direct(*args, **kwargs)
    else:
        with open_to_transforms():
            out = op.calls.direct(*args, **kwargs)
    op.state.refuse_writes(given, versions, values)
    if op.signature.returns_input is not None:
        return None
    if not op.is_gradient:
        probe.refuse_alias(op.name, given, out)
    return bare(op, out)


def _gradient(op: Op[..., Any], role: Gradient, values: Kwargs, args: Args, kwargs: Kwargs) -> Any:
    if op.home.outdated:
        raise probe.BadReference(
            f"{op.name}: {op.home.name} was defined again since this was recorded, and what its first definition names "
            f"has changed since; call it again before you differentiate"
        )
    out = None
    if role.takes_caches and somebody_differentiates([t for value in values.values() for t in tensors(value)]):
        # From the inputs alone: the formula would be differentiated with its extras held fast.
        out = role.without_caches(*args, **kwargs)
    if out is None:
        with open_to_transforms():
            out = op.calls.direct(*args, **kwargs)
    return _as_promised(role.of, values, out) if op.follows_shapes and op.shapes is not None else out


def _as_promised(of: Op[..., Any], values: dict[str, Any], out: Any) -> Any:
    """Gradients in the layout that follows for them, whatever layout their formula gives: graphs count on it."""
    inputs = of.signature.differentiable_inputs
    return [_in_layout(values[p.name], grad) for p, grad in zip(inputs, out, strict=True)]


def _in_layout(like: Any, grad: Any) -> Any:
    if isinstance(grad, (list, tuple)):
        return [_in_layout(t, g) for t, g in zip(like, grad, strict=True)] if len(grad) else grad
    if grad is None or grad.shape != like.shape:
        return grad
    wanted = torch.empty_like(like)
    return grad if grad.stride() == wanted.stride() else wanted.copy_(grad)


def bare(op: Op[..., Any], out: Any) -> Any:
    """A result as the dispatcher takes it."""
    return out[0] if len(op.signature.outputs) == 1 and not op.signature.single else out


def differentiated(op: Op[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """The reference, for PyTorch to differentiate as it goes."""
    if op.surrogate:
        raise TypeError(
            f"{op.name}: its gradient is declared a surrogate, which is not the derivative of its reference; there is "
            f"no formula for forward-mode AD, nor for an argument that it writes and that requires a gradient"
        )
    return reference(op, args, kwargs)


def transformed(op: Op[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What torch.func's transforms and autocast take apart: the reference, with a declared gradient behind it."""
    stack = private.transforms() or []
    forward_mode = any(layer.key() == private.TransformType.Jvp for layer in stack)
    if op.calls.seen_through is op.calls.direct or forward_mode:
        return differentiated(op, args, kwargs)
    return bare(op, op.calls.seen_through(*args, **kwargs))


def unrouted(op: Op[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What C++ has no kernel for: the reference, unless there is a kernel that C++ does not know."""
    if any(not k.routed for k in op.kernels):
        device = device_of(op.signature.bind(args, kwargs))
        if any(k.device == device and not k.routed for k in op.kernels):
            return kernel(op, args, kwargs)
    return reference(op, args, kwargs)


def kernel(op: Op[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """The kernel whose domain holds the call, else the reference."""
    if not op.called:
        _first_call(op, args, kwargs)
    if not op.kernels:
        return reference(op, args, kwargs)
    values = op.signature.bind(args, kwargs)
    chosen, _ = op.choose(values)
    function = None if chosen is None or writing.refuses(op, values) is not None else chosen.ready(op)
    if chosen is None or function is None:
        return reference(op, args, kwargs)
    try:
        out = function(*args, **kwargs)
    except Exception as e:
        said = str(e)
        if "CUDA out of memory" in said and not isinstance(e, torch.OutOfMemoryError):
            raise torch.OutOfMemoryError(said) from None  # which training loops catch, as router.cpp has it
        # Not after an error of CUDA's, behind which the reference would see that error alone.
        known = any(text in said for text in ("(cudaError", "CUDA out of memory", "is there memory for it?"))
        if not known and not any(p.mutated for p in op.signature.parameters):
            # Who may say better what is wrong, as router.cpp has it.
            bare = re.fullmatch(r"aten::[\w.]+ failed", said) and "group" not in op.signature.names
            _ = reference(op, args, kwargs) if bare else op.run_rejecting(*args, **kwargs)
        raise
    for t in (t for p in op.signature.parameters if p.mutated for t in tensors(values[p.name])):
        if not t.is_inference():  # a kernel may write raw memory, which nobody counts; autograd must notice
            torch.autograd.graph.increment_version(t)
    return out if chosen.library is not None else _read_result(op, chosen, out)


def _first_call(op: Op[..., Any], args: Args, kwargs: Kwargs) -> None:
    refuse_captured(op)
    _refuse_histories(op, args, kwargs)
    op.home.stood = op.home.stood or op.home.digest
    op.called = True
    short.open_way(op)
    if f"{op.qualname}_backward" in registry.entries:
        op.define_gradient()  # its former self's has the name


def refuse_captured(op: Op[..., Any]) -> None:
    """Raise for a reference that reads a tensor with a gradient which is no argument: nobody would follow it."""
    home = op.home
    if op.is_gradient or not home.opaque:
        return
    for name, value in [each for form in dict.fromkeys((home, op)) for each in named(form.reference)]:
        if isinstance(value, torch.nn.Module):
            tracked = any(p.requires_grad for p in value.parameters())
        else:
            tracked = isinstance(value, torch.Tensor) and value.requires_grad
        if tracked:
            raise probe.BadReference(
                f"{home.name}: its reference reads {name!r} from the code around it, which requires a gradient and "
                f"would get none, since {home.name} is one call for autograd; pass it as an argument, or detach it"
            )


def _refuse_histories(op: Op[..., Any], args: Args, kwargs: Kwargs) -> None:
    """Raise for a reference that gives an argument a history by writing to it: as one call for autograd the operator
    records what it returns, and such a gradient would be lost."""
    mutated = [p.name for p in op.signature.parameters if p.mutated]
    if not mutated or op.is_gradient or op.recorded_by_reference or op.home is not op:
        return
    values = op.signature.bind(args, kwargs)
    given = [t for value in values.values() for t in tensors(value)]
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout != torch.strided for t in given):
        return  # who knows what they keep
    followed = {p.name for p in op.signature.differentiable_inputs} - {*mutated}

    def lost(like: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
        """The argument that has a history after a run on tensors of the same looks."""

        def stand_in(value: Any, follow: bool) -> Any:
            if isinstance(value, (list, tuple)):
                return [stand_in(v, follow) for v in value]
            if not isinstance(value, torch.Tensor):
                return value
            return like(value).requires_grad_(follow and has_gradient(value))

        trial = {name: stand_in(v, name in followed) for name, v in values.items()}
        op.reference(**trial)
        return next((n for n in mutated if any(t.requires_grad for t in tensors(trial[n]))), None)

    def empty(t: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)

    with torch.inference_mode(False), torch.enable_grad(), above_autograd():
        try:
            with private.unlogged_fakes(), private.fake_tensor_mode(allow_non_fake_inputs=True):
                name = lost(empty)
        except Exception:  # it reads values
            try:
                name = None if op.random else lost(torch.clone)
            except Exception:
                return  # it rejects these, as it will now
    if name is not None:
        raise probe.BadReference(
            f"{op.name}: its reference writes to {name!r} what has a gradient, which would be lost, since "
            f"{op.name} is one call for autograd; write a detached tensor, or inside `with torch.no_grad():`"
        )


def _read_result(op: Op[..., Any], kernel: Kernel, out: Any) -> Any:
    """What a kernel in Python returned, as the dispatcher takes it."""
    outputs = op.signature.outputs
    if op.signature.returns_input is not None:
        return None  # it may return what it wrote to, as in-place functions do
    if len(outputs) == 1 and isinstance(out, tuple) and len(out) == 1:
        return out[0]
    if len(outputs) == 1 and not _fits(outputs[0], out):
        raise TypeError(
            f"{op.name}: its kernel {kernel.name} returned {describe(out)}; it must return {outputs[0].kind.says}"
        )
    if len(outputs) > 1 and (not isinstance(out, (tuple, list)) or len(out) != len(outputs)):
        raise TypeError(
            f"{op.name}: its kernel {kernel.name} returned {describe(out)}; "
            f"it must return the {len(outputs)} results of {op.schema}"
        )
    return out


def _fits(output: Output, value: Any) -> bool:
    if output.kind.is_list:
        return isinstance(value, (list, tuple)) and all(isinstance(v, torch.Tensor) for v in value)
    return isinstance(value, torch.Tensor) or (value is None and output.kind.is_optional)
