"""Autograd in Python: records an operator as one node whose backward is the next rung of its ladder."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.derive.refused import lead, refuse_derivative
from opwright.kit.dispatch import kept, objects, registry
from opwright.kit.spec.require import spell
from opwright.kit.spec.values import like, tensors, unread

if TYPE_CHECKING:
    from opwright.kit.derive.derive import Rung
    from opwright.kit.op import Op


def autograd_kernel(op: Op[..., Any], keyset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the dispatcher calls for an operator at its Autograd keys."""
    values = op.signature.bind(args, kwargs)
    strangers = [t for value in values.values() for t in tensors(value) if type(t) not in _PLAIN]
    whole = bool(strangers) and registry.meet(op.overload.name(), strangers)
    followed = [t for p in op.signature.differentiable_inputs for t in tensors(values[p.name])]
    updated = [t for p in op.signature.parameters if p.mutated for t in tensors(values[p.name])]
    if private.forward_level() >= 0 and any(_has_tangent(t) for t in followed):
        return op.run_differentiated(*args, **kwargs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in updated):
        return op.run_differentiated(*args, **kwargs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in followed):
        # Compiled graphs are cached on disk under the operator's name, whatever its reference says by then. So they
        # hold it and its gradient as one node each, where there is a gradient to hold. So do DTensors: a gradient has
        # rules of its own, to every order, which the steps of its reference have not.
        one_node = torch.compiler.is_compiling() or (op.is_gradient and registry.any_distributed(strangers))
        if op.recorded_by_reference and not (one_node and op.has_rung):
            return op.run_differentiated(*args, **kwargs)
        form = op.recorded_form if op.has_rung else op
        flat = _node_of(op.name).apply(form, keyset, values, whole, *followed)  # type: ignore[no-untyped-call]
        return _unflatten(op, form, flat)
    # Nobody differentiates: stay one call, so that tracers which suspend autograd see no derivation at work.
    with private.BelowAutograd():
        return op.overload.redispatch(keyset & private.AFTER_AUTOGRAD, *args, **kwargs)


_PLAIN = (Tensor, torch.nn.Parameter)


def _has_tangent(t: Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(t).tangent is not None


class _Node(torch.autograd.Function):
    """One call of an operator in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, op: Op[..., Any], keyset: Any, values: dict[str, Any], whole: bool, *followed: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        # Differentiated by the gradient that it has now, whatever becomes of the operator before the backward.
        ctx.above = op.backward if op.has_rung else None
        rung = None if ctx.above is None else ctx.above.rung
        positional, named = op.signature.encode(values)
        inputs = _keep_updated(op, rung, values)
        with private.BelowAutograd():
            out = op.overload.redispatch(keyset & private.AFTER_AUTOGRAD, *positional, **named)
        out = _own(out)
        outputs = (out,) if len(op.signature.outputs) == 1 else tuple(out)
        _refuse_arguments(op.form_of or op, values, outputs)
        ctx.op = op
        ctx.shapes = [None if o is None else [_Shape.of(t) for t in tensors(o)] for o in outputs]
        _save(ctx, op, rung, inputs, outputs, whole)
        once = ctx.above is not None and ctx.above.differentiable_once is not None
        ctx.leads = lead(followed) if once else []
        fixed = [
            t
            for o, value in zip(op.signature.outputs, outputs, strict=True)
            if not o.differentiable
            for t in tensors(value)
        ]
        ctx.mark_non_differentiable(*fixed)
        ctx.lengths = [len(o) if isinstance(o, (list, tuple)) else None for o in outputs]
        flat: list[Tensor | None] = []
        for o in outputs:
            flat += list(o) if isinstance(o, (list, tuple)) else [o]
        return (*flat, tuple(ctx.lengths))

    @staticmethod
    def backward(ctx: Any, *flat: Tensor | None) -> Any:
        op: Op[..., Any] = ctx.op
        rest = iter(flat)
        incoming = [[next(rest) for _ in range(n)] if n is not None else next(rest) for n in ctx.lengths]
        chosen = [incoming[i] for i in op.signature.differentiable_outputs]
        if all(g is None for grad in chosen for g in (grad if isinstance(grad, list) else [grad])):
            return (None,) * len(ctx.needs_input_grad)
        above = ctx.above or op.backward  # which raises where there is no further rung
        saved, values = _restore(ctx)
        assert above.rung is not None
        arguments: dict[str, Any] = {}
        for name, i, grad in zip(above.rung.grads, op.signature.differentiable_outputs, chosen, strict=True):
            arguments[name] = _materialize(above, name, grad, ctx.shapes[i], flat)
        arguments.update(saved)
        needed = iter(ctx.needs_input_grad[4:])
        wants = [[next(needed) for _ in values[p.name]] for p in op.signature.differentiable_inputs]
        arguments[above.rung.wanted] = [any(w) for w in wants]
        if torch.compiler.is_compiling() or registry.any_distributed(arguments.values()):
            above.define()  # before Dynamo reads its calls, which become others by that
            grads = above.calls.when_asked[0](**arguments)
        else:
            grads = above(**arguments)
        if torch.is_grad_enabled() and above.differentiable_once is not None:
            made_of = [t for value in arguments.values() for t in tensors(value)]
            grads = [refuse_derivative(above.differentiable_once, grad, made_of + ctx.leads) for grad in grads]
        result: list[Tensor | None] = []
        for p, want, grad in zip(op.signature.differentiable_inputs, wants, grads, strict=True):
            each = list(grad) if isinstance(grad, (list, tuple)) else [grad]
            _check_gradients(op, p.name, each, ctx.values[p.name])
            result += [g if w else None for w, g in zip(want, each or [None] * len(want), strict=True)] if want else []
        return (None, None, None, None, *result)


@functools.cache
def _node_of(name: str) -> type[_Node]:
    """The kind of node of an operator, which profiles and `grad_fn` show by that name, as C++ names its own."""
    title = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return type(title, (_Node,), {"__module__": __name__})


def _refuse_arguments(op: Op[..., Any], values: dict[str, Any], outputs: tuple[Any, ...]) -> None:
    """Raise for a kernel that returned an argument, as autograd.cpp does: it would get the history of a result."""
    given = [t for value in values.values() for t in tensors(value)]
    if any(t is g for t in tensors(outputs[: len(op.signature.outputs)]) for g in given):
        raise TypeError(
            f"{op.name}: its kernel returned one of its arguments, and an operator's result is memory of its own; "
            f"return a copy"
        )


def _own(out: Any) -> Any:
    """A result may be a view of memory that only the operator has seen, and would be one of a base without a history.
    In its place comes a tensor of the same memory that is no view."""
    if isinstance(out, (list, tuple)):
        return [_own(o) for o in out]
    if not isinstance(out, Tensor) or not out._is_view() or private.modes():
        return out  # tracers see to it themselves
    with private.BelowADInplaceOrView():
        return torch.ops.aten.alias.default(out)


def _keep_updated(op: Op[..., Any], rung: Rung | None, values: dict[str, Any]) -> dict[str, Any]:
    """The arguments as they are before the call, for what the gradient reads of those that it writes to."""
    read = () if rung is None else rung.inputs
    updated = [p.name for p in op.signature.parameters if p.mutated and p.name in read and values[p.name] is not None]
    return values | {name: kept.copy(values[name]) for name in updated}


class _Shape(NamedTuple):
    """What is remembered of a tensor whose values are not kept."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, t: Tensor) -> _Shape:
        return cls(t.shape, t.dtype, t.device)

    def zeros(self, others: Sequence[Tensor | None]) -> Tensor:
        """Of the kind that others are, some of which take no plain tensors beside them."""
        other = next((t for t in others if isinstance(t, Tensor) and type(t) not in _PLAIN), None)
        if other is not None:
            return other.new_zeros(self.shape, dtype=self.dtype, device=self.device)
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def _check_gradients(op: Op[..., Any], name: str, grads: list[Tensor | None], inputs: list[_Shape]) -> None:
    """A gradient has its input's shape. Autograd would quietly sum one that merely broadcasts to it."""
    if not inputs:
        return
    if grads and len(grads) != len(inputs):
        raise ValueError(f"{op.name}: its gradient returned {len(grads)} gradients for the {len(inputs)} of {name}")
    for grad, t in zip(grads, inputs, strict=False):
        if grad is not None and grad.shape != t.shape:
            raise ValueError(
                f"{op.name}: its gradient returned shape {spell(grad.shape)} for {name} of shape {spell(t.shape)}"
            )


def _materialize(
    above: Op[..., Any], name: str, grad: Any, shapes: list[_Shape] | None, others: Sequence[Tensor | None]
) -> Any:
    kind = above.signature.names[name].kind
    if isinstance(grad, list):
        assert shapes is not None
        return [m.zeros(others) if g is None else g for g, m in zip(grad, shapes, strict=True)]
    if grad is None and not kind.is_optional and shapes:
        return shapes[0].zeros(others)
    return grad


def _save(
    ctx: Any, op: Op[..., Any], rung: Rung | None, values: dict[str, Any], outputs: tuple[Any, ...], whole: bool
) -> None:
    """Keep what the next rung needs: tensors where autograd watches over them, everything else as it is. `whole`: there
    are tensors of kinds that take no plain stand-ins beside them, such as DTensors."""
    if rung is None:  # differentiable no further; who tries is told then
        ctx.values = {}
        return
    kept: list[Tensor] = []
    plan: dict[str, Any] = {}
    requiring = {
        p.name for p in op.signature.differentiable_inputs if any(t.requires_grad for t in tensors(values[p.name]))
    }

    def keep_if_read(name: str, value: Any) -> Any:
        if name in rung.when and not values[rung.when[name]]:
            return None
        read = whole or name not in rung.needs or bool(rung.needs[name] & requiring)
        return _kept_in(kept, value) if read or not isinstance(value, Tensor) else unread(value)

    for name in rung.inputs:
        value = values[name]
        if private.class_of(value) is not None:
            value = objects.Seen(op, name, value)
        only_like = rung.signature.names[name].like and value is not None and not whole
        plan[name] = like(value) if only_like else keep_if_read(name, value)
    for name, index in rung.outputs.items():
        plan[name] = keep_if_read(name, outputs[index])
    ctx.save_for_backward(*kept)
    ctx.plan = plan
    # The shapes of the arguments' lists are needed to hand the gradients back; the tensors themselves are not.
    ctx.values = {p.name: [_Shape.of(t) for t in tensors(values[p.name])] for p in op.signature.differentiable_inputs}


# Functions of their own: one inside another that calls itself is a cycle, which would hold these tensors until somebody
# collects it.
def _kept_in(kept: list[Tensor], value: Any) -> Any:
    """A value with a slot in place of each tensor, which is kept."""
    if isinstance(value, Tensor):
        kept.append(value)
        return _Slot(len(kept) - 1)
    return [_kept_in(kept, v) for v in value] if isinstance(value, (list, tuple)) else value


def _filled(kept: Sequence[Tensor], value: Any) -> Any:
    """A value with the tensors that were kept in their slots' places."""
    if isinstance(value, _Slot):
        return kept[value.index]
    if isinstance(value, objects.Seen):
        return value.as_it_was()
    return [_filled(kept, v) for v in value] if isinstance(value, list) else value


def _restore(ctx: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    kept = ctx.saved_tensors
    return {name: _filled(kept, value) for name, value in ctx.plan.items()}, ctx.values


class _Slot:
    def __init__(self, index: int) -> None:
        self.index = index


def _unflatten(op: Op[..., Any], form: Op[..., Any], flat: tuple[Any, ...]) -> Any:
    *values, lengths = flat
    rest = iter(values)
    outputs = [[next(rest) for _ in range(n)] if n is not None else next(rest) for n in lengths]
    asked = len(op.signature.outputs)  # the form may have computed extra results
    return outputs[0] if asked == 1 else tuple(outputs[:asked])
