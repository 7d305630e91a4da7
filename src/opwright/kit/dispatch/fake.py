"""The fake kernel: what an operator's results look like, computed by its reference on fake tensors, or by a function of
its author's."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.derive.derive import read_mask
from opwright.kit.derive.vjp import above_autograd
from opwright.kit.dispatch import running
from opwright.kit.dispatch.call import read_outputs
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op
    from opwright.kit.spec.schema import Signature


def run(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a call as fake tensors."""
    if not op.called:
        running.refuse_captured(op)
    declared = op.shapes
    devices = {t.device for t in tensors([*args, *kwargs.values()]) if t.dim()}
    if declared is not None and len(devices) < 2:  # of tensors on several devices the reference knows what to say
        out = declared(**op.signature.bind(args, kwargs))
        out = (out,) if op.is_gradient and not isinstance(out, (tuple, list)) else out
        return running.bare(op, read_outputs(out, op.name, op.signature))
    with contextlib.ExitStack() as stack:
        if not op.is_gradient:
            # Above autograd, where PyTorch's composite operators do what they do when they are called; below it some
            # of them reach decompositions with other shapes.
            stack.enter_context(torch.no_grad())
            stack.enter_context(above_autograd())
        found: list[Any] = []
        stack.enter_context(_no_leftover_symbols([*args, *kwargs.values()], found))
        out = op.run_reference(*args, **kwargs)
        found.append(out)
    return out


def refuse_unfit(name: str, signature: Signature, function: Callable[..., Any]) -> None:
    """Raise unless a function that says what results look like takes an operator's parameters."""
    given = inspect.signature(function).parameters if callable(function) else {}
    named = [p.name for p in given.values() if p.kind is not p.VAR_KEYWORD]
    rest = len(named) < len(given)
    if not set(named) <= set(signature.names) or not (rest or len(named) == len(signature.names)):
        raise TypeError(
            f"{name}: the function that says its shapes must take its parameters "
            f"({', '.join(signature.names)}) or some and **rest, got ({', '.join(given)})"
        )


def of_gradient(op: Op[..., Any]) -> Callable[..., Any] | None:
    """What follows for a gradient: each has the shape, dtype and layout of its input, where that is an argument."""
    rung, below = op.rung, op.parent
    assert rung is not None
    assert below is not None
    inputs = [p.name for p in below.signature.differentiable_inputs]
    if any(name not in rung.inputs for name in inputs):
        return None

    def shapes(**values: Any) -> tuple[Any, ...]:
        wanted = read_mask(values[rung.wanted], values, below.signature.differentiable_inputs)
        return tuple(_empty_like(values[name], want) for name, want in zip(inputs, wanted, strict=True))

    return shapes


def _empty_like(value: Any, wanted: bool) -> Any:
    if isinstance(value, (list, tuple)):
        return [torch.empty_like(t) for t in value] if wanted else []
    return torch.empty_like(value) if wanted else None


@contextlib.contextmanager
def _no_leftover_symbols(given: list[Any], found: list[Any]) -> Iterator[None]:
    """Sizes and numbers that a reference reads from values are its own affair, unless a result has such a size:
    whoever traces the call must only hear of those."""
    mode = next((m for t in tensors(given) if (m := getattr(t, "fake_mode", None)) is not None), None)
    environment = None if mode is None else mode.shape_env
    if environment is None:
        yield
        return
    pending = environment.pending_fresh_unbacked_symbols
    before = len(pending)
    yield
    if len(pending) > before:
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        shown = free_unbacked_symbols(tensors(found))
        pending[before:] = [symbol for symbol in pending[before:] if symbol in shown]


def imagine(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the reference on fake tensors: it rejects what it would reject, and nothing is computed."""
    mode = private.fake_tensor_mode(allow_non_fake_inputs=True)

    def imagined(value: Any) -> Any:
        if isinstance(value, Tensor):
            return mode.from_tensor(value)
        return [imagined(v) for v in value] if isinstance(value, (list, tuple)) else value

    with private.unlogged_fakes(), mode, torch.no_grad():
        return op.run_reference(*map(imagined, args), **{k: imagined(v) for k, v in kwargs.items()})


def rehearse(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Raise what the reference raises for these arguments. What it objects to on fake tensors it is asked once more
    with the values, which some references read."""
    try:
        return imagine(op, args, kwargs)
    except Exception:
        return op.run_reference(*args, **kwargs)
