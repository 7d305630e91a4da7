"""A reference with its declared gradient behind it, both of which PyTorch sees through.

Compiled graphs fuse what it is made of, and torch.func's transforms take it apart: neither may differentiate the
reference itself, whose derivative is another where a gradient differs from it on purpose, or does not exist at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from opwright.kit.derive import Rung
    from opwright.kit.schema import Signature


def followed_by_autograd(values: tuple[Any, ...]) -> bool:
    """Whether a graph must hold a gradient for a call with these arguments."""
    if torch._C._functorch.maybe_current_level() is not None:  # type: ignore[attr-defined]
        return True
    flat = [t for v in values for t in (v if isinstance(v, (list, tuple)) else (v,))]
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in flat)


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

    def gradients(given: dict[str, Any]) -> tuple[Any, ...]:
        assert gradient is not None
        out = gradient(**{n: given[n] for n in takes})
        return tuple(out) if isinstance(out, (tuple, list)) and not one_list else (out,)

    def under_casts(casts: Any, given: dict[str, Any]) -> tuple[Any, ...]:
        """The formula in the autocast that the forward saw: the two must agree on dtypes."""
        if not any(enabled for _, enabled, _ in casts):
            return gradients(given)
        with contextlib.ExitStack() as stack:
            for device, enabled, dtype in casts:
                stack.enter_context(torch.autocast(device, enabled=enabled, dtype=dtype))
            return gradients(given)

    class Formula(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(lengths: tuple[int, ...], *flat: Any) -> Any:
            return results(restore(lengths, flat))[:outputs]

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            lengths, flat = inputs[0], inputs[1:]
            ctx.lengths = lengths
            ctx.kinds = tuple(isinstance(t, Tensor) for t in flat)
            ctx.others = tuple(t for t in flat if not isinstance(t, Tensor))
            ctx.given = sum(ctx.kinds)
            ctx.present = tuple(isinstance(o, Tensor) for o in output)
            ctx.save_for_backward(
                *(t for t in flat if isinstance(t, Tensor)), *(o for o in output if isinstance(o, Tensor))
            )
            if not torch.compiler.is_compiling():
                ctx.casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
            frozen = [output[i] for i in fixed if isinstance(output[i], Tensor)]
            if frozen:
                ctx.mark_non_differentiable(*frozen)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            kept, others = iter(ctx.saved_tensors[: ctx.given]), iter(ctx.others)
            flat = [next(kept) if is_tensor else next(others) for is_tensor in ctx.kinds]
            values = restore(ctx.lengths, flat)
            if saving is not None:
                # Again, and not from what was saved: a second derivative goes through them.
                out = results(values)
            else:
                made = iter(ctx.saved_tensors[ctx.given :])
                out = tuple(next(made) if present else None for present in ctx.present)
            given = dict(values)
            for name, index in saved_outputs:
                given[name] = out[index]
            for name, index in zip(grad_names, chosen, strict=True):
                given[name] = grads[index]
            needed = iter(ctx.needs_input_grad[1:])
            wants: dict[str, list[bool]] = {}
            for name, several, length in zip(names, listed, ctx.lengths, strict=True):
                wants[name] = [next(needed) for _ in range(length if several and length >= 0 else 1)]
            given[wanted] = [any(wants[name]) for name in differentiable]
            found = gradients(given) if torch.compiler.is_compiling() else under_casts(ctx.casts, given)
            if len(found) != len(differentiable):
                raise TypeError(f"{title}: its gradient returned {len(found)} results; {promise}")
            spread: list[Any] = []
            for name in names:
                want = wants[name]
                grad = found[differentiable.index(name)] if name in differentiable else None
                each = list(grad) if isinstance(grad, (list, tuple)) and len(grad) else [grad] * len(want)
                spread += [g if w else None for g, w in zip(each, want, strict=True)]
            return (None, *spread)

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and not followed_by_autograd((*args, *kwargs.values())):
            return function(*args, **kwargs)
        lengths: list[int] = []
        flat: list[Any] = []
        for i, name in enumerate(names):
            value = args[i] if i < len(args) else kwargs[name] if name in kwargs else defaults[name]
            several = listed[i] and value is not None
            lengths.append(len(value) if several else -1)
            flat += list(value) if several else [value]
        out = Formula.apply(tuple(lengths), *flat)  # type: ignore[no-untyped-call]
        if bare:
            return out[0]
        return container(out) if container is not None else out

    return run
