"""A reference with its declared gradient behind it, both of which PyTorch sees through.

Compiled graphs fuse what it is made of, and torch.func's transforms take it apart: neither may differentiate the
reference itself, whose derivative is another where a gradient differs from it on purpose, or does not exist at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit.dispatch import kept
from opwright.kit.spec.require import spell

if TYPE_CHECKING:
    from opwright.kit.derive.derive import Rung
    from opwright.kit.spec.schema import Signature


def followed_by_autograd(values: tuple[Any, ...]) -> bool:
    """Whether a graph must hold a gradient for a call with these arguments."""
    flat = [t for v in values for t in (v if isinstance(v, (list, tuple)) else (v,))]
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in flat)


class _Shape:
    """How many tensors each result is; None: one that is not a list."""

    lengths: list[int | None]


def followed(
    title: str,
    signature: Signature,
    function: Callable[..., Any],
    rung: Rung,
    saving: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """`function` as a function whose gradient is the rung's formula; `saving` stands in its place where the formula
    takes extra results, which it returns beside the outputs."""
    # Plain names and numbers, all of them: Dynamo traces what stands below, the backward among it.
    names = tuple(p.name for p in signature.parameters)
    listed = tuple(p.kind.is_list and p.kind.is_tensor for p in signature.parameters)
    differentiable = tuple(p.name for p in signature.differentiable_inputs)
    outputs, chosen = len(signature.outputs), signature.differentiable_outputs
    fixed = tuple(i for i, o in enumerate(signature.outputs) if not o.differentiable)
    single = saving is None and signature.single
    forward_function = function if saving is None else saving
    grad_names, wanted, takes, gradient = rung.grads, rung.wanted, rung.takes, rung.gradient
    saved_outputs = tuple(rung.outputs.items())
    bare, container = signature.single, signature.container
    lists = any(o.kind.is_list for o in signature.outputs)
    encoded = tuple(p.kind.convert if p.kind.encode else None for p in signature.parameters)
    written = tuple(p.name for p in signature.parameters if p.mutated and (p.name in rung.takes or saving is not None))
    required = tuple(rung.signature.names[name].kind.schema == "Tensor" for name in rung.grads)
    defaults = {p.name: p.default for p in signature.parameters}
    promise = f"it must return one for each differentiable input: {', '.join(differentiable)}"
    one_list = len(differentiable) == 1 and signature.names[differentiable[0]].kind.is_list

    def restore(lengths: tuple[int, ...], flat: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        at = 0
        for name, several, length in zip(names, listed, lengths, strict=True):
            if several and length >= 0:
                values[name] = list(flat[at : at + length])
                at += length
            else:
                values[name] = flat[at]
                at += 1
        return values

    def results(values: dict[str, Any]) -> tuple[Any, ...]:
        out = forward_function(**values)
        return (out,) if single else tuple(out)

    def grouped(flat: Any, lengths: Any) -> list[Any]:
        """Results, or gradients of them, one for each output: lists of them are lists again."""
        if lengths is None:
            return list(flat)
        feed = iter(flat)
        return [next(feed) if n is None else [next(feed) for _ in range(n)] for n in lengths]

    def gradients(given: dict[str, Any]) -> tuple[Any, ...]:
        assert gradient is not None
        out = gradient(**{n: given[n] for n in takes})
        return tuple(out) if isinstance(out, (tuple, list)) and not one_list else (out,)

    def under_casts(casts: Any, given: dict[str, Any]) -> tuple[Any, ...]:
        """The formula in the autocast that the forward saw: the two must agree on dtypes."""
        if not casts:
            return gradients(given)
        (device, dtype), *others = casts
        with torch.autocast(device, dtype=dtype):
            return under_casts(others, given)

    class Formula(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(lengths: tuple[int, ...], casts: Any, shape: Any, *flat: Any) -> Any:
            out = results(restore(lengths, flat[len(written) :]))[:outputs]
            if shape is None:
                return out
            shape.lengths = [len(o) if isinstance(o, (list, tuple)) else None for o in out]
            return tuple(t for o in out for t in (o if isinstance(o, (list, tuple)) else (o,)))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            lengths, ctx.casts, shape, flat = inputs[0], inputs[1], inputs[2], inputs[3:]
            ctx.lengths = lengths
            ctx.shape = None if shape is None else shape.lengths
            ctx.kinds = tuple(isinstance(t, Tensor) for t in flat)
            ctx.others = tuple(t for t in flat if not isinstance(t, Tensor))
            ctx.given = sum(ctx.kinds)
            ctx.present = tuple(isinstance(o, Tensor) for o in output)
            ctx.save_for_backward(
                *(t for t in flat if isinstance(t, Tensor)), *(o for o in output if isinstance(o, Tensor))
            )
            if not torch.compiler.is_compiling():
                ctx.set_materialize_grads(False)
            each = grouped(output, ctx.shape)
            frozen = [t for i in fixed for t in (each[i] if isinstance(each[i], list) else [each[i]])]
            frozen = [t for t in frozen if isinstance(t, Tensor)]
            if frozen:
                ctx.mark_non_differentiable(*frozen)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            held = ctx.saved_tensors  # asked for once: a checkpoint hands out nothing twice
            saved, others = iter(held[: ctx.given]), iter(ctx.others)
            flat = [next(saved) if is_tensor else next(others) for is_tensor in ctx.kinds]
            values = restore(ctx.lengths, flat[len(written) :])
            values |= zip(written, flat, strict=False)
            if saving is not None:
                # Again, and not from what was saved: a second derivative goes through them.
                out: Any = results({n: kept.copy(v) if n in written else v for n, v in values.items()})
            else:
                made = iter(held[ctx.given :])
                out = grouped([next(made) if present else None for present in ctx.present], ctx.shape)
            given = dict(values)
            for name, index in saved_outputs:
                given[name] = out[index]
            incoming = grouped(grads, ctx.shape)
            for name, index, must in zip(grad_names, chosen, required, strict=True):
                grad = incoming[index]
                if isinstance(grad, list):
                    grad = [torch.zeros_like(o) if g is None else g for g, o in zip(grad, out[index], strict=True)]
                given[name] = torch.zeros_like(out[index]) if grad is None and must else grad
            needed = iter(ctx.needs_input_grad[3 + len(written) :])
            wants: dict[str, list[bool]] = {}
            for name, several, length in zip(names, listed, ctx.lengths, strict=True):
                wants[name] = [next(needed) for _ in range(length if several and length >= 0 else 1)]
            given[wanted] = [any(wants[name]) for name in differentiable]
            found = under_casts(ctx.casts, given)
            if len(found) != len(differentiable):
                raise TypeError(f"{title}: its gradient returned {len(found)} results; {promise}")
            spread: list[Any] = []
            for name in names:
                want = wants[name]
                grad = found[differentiable.index(name)] if name in differentiable else None
                each = list(grad) if isinstance(grad, (list, tuple)) and len(grad) else [grad] * len(want)
                spread += [g if w else None for g, w in zip(each, want, strict=True)]
            for grad, t in zip(spread, flat[len(written) :], strict=True):
                if grad is not None and grad.shape != t.shape:  # autograd would quietly sum one that broadcasts to it
                    raise ValueError(f"{title}: its gradient returned {spell(grad.shape)} for {spell(t.shape)}")
            return (None, None, None, *(None for _ in written), *spread)

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and not followed_by_autograd((*args, *kwargs.values())):
            return function(*args, **kwargs)
        lengths: list[int] = []
        flat: list[Any] = []
        before: list[Any] = []
        for i, name in enumerate(names):
            value = args[i] if i < len(args) else kwargs[name] if name in kwargs else defaults[name]
            convert = encoded[i]
            if convert is not None and isinstance(value, (str, int)):  # as it crosses the dispatcher
                value = convert(value)
            several = listed[i] and value is not None
            lengths.append(len(value) if several else -1)
            flat += list(value) if several else [value]
            if name in written:
                before.append(kept.copy(value))  # the formula reads it as it was
        casts = tuple((d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))
        shape = _Shape() if lists else None
        out = Formula.apply(tuple(lengths), casts, shape, *before, *flat)  # type: ignore[no-untyped-call]
        out = tuple(grouped(out, shape.lengths)) if shape is not None else out
        if bare:
            return out[0]
        return container(out) if container is not None else out

    return run
