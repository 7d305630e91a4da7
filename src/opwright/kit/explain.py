"""What a call will run, and why."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opwright.kit.derive import behaviour, shard
from opwright.kit.dispatch import fake, node, writing
from opwright.kit.op import Op
from opwright.kit.spec.require import spell
from opwright.kit.spec.values import tensors


@dataclass(frozen=True)
class Step:
    """One rung of a call: what runs there and the reason."""

    name: str
    runs: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """What a call will run. Printed, it is a short table."""

    call: str
    schema: str
    steps: tuple[Step, ...]
    error: str | None = None
    """What the call will raise, if it will."""

    @property
    def runs(self) -> str:
        """What computes the result: `reference`, or a kernel's name."""
        return self.steps[0].runs

    def __str__(self) -> str:
        width = max(len(s.name) for s in self.steps)
        kind = max(len(s.runs) for s in self.steps)
        lines = [self.call, *(f"  {s.name:{width}}  {s.runs:{kind}}  {s.why}" for s in self.steps)]
        if self.error:
            lines.append(f"  raises: {self.error}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(op: Op[..., Any] | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Which kernel a call will run on each rung, and why. Nothing is computed.

    Without arguments it speaks of the operator in general.

    >>> import torch, opwright as ow
    >>> @ow.op
    ... def twice(x: torch.Tensor) -> torch.Tensor:
    ...     return x + x
    >>> print(ow.explain(twice, torch.ones(3, requires_grad=True)))
    twice(x=float32[3] cpu)
      forward   reference  twice has no kernel
      backward  autograd   records what the reference does
      compile   inlined    torch.compile sees through an operator without kernels
    """
    over = getattr(op, "explain", None)
    if not isinstance(op, Op) and callable(over):  # a function over operators says itself what it runs
        if args or kwargs:
            said: Explanation = over(*args, **kwargs)
            return said
        below = getattr(op, "op", None)
        if not isinstance(below, Op):
            takes = ", ".join(inspect.signature(op).parameters)
            raise TypeError(f"explain: what {op.__name__} runs depends on its arguments, {takes}; give those of a call")
        return explain(below)
    if not isinstance(op, Op):
        hint = "; of a module, explain the operator that it calls" if isinstance(op, torch.nn.Module) else ""
        raise TypeError(f"explain: the first argument must be an operator, got {type(op).__name__}{hint}")
    given = bool(args or kwargs)
    values = op.signature.bind(args, kwargs) if given else {}
    shown = ", ".join(f"{name}={_show(value)}" for name, value in values.items())
    backward = _backward(op, values, given)
    steps = [_recorded(op, _forward(op, values, given), backward, given), backward, _compile(op)]
    if backward.runs in ("kernel", "reference") and op.recorded_form is not op:
        form = _forward(op.recorded_form, values, given, "recorded")
        steps.insert(1, Step(form.name, form.runs, f"{op.recorded_form.name}, for a gradient; {form.why}"))
    spread = _sharding(op, values, given)
    steps += [] if spread is None else [spread]
    error = (_error(op, args, kwargs) or _kernel_error(op, steps, values)) if given and spread is None else None
    return Explanation(f"{op.name}({shown})", op.schema, tuple(steps), error)


def _kernel_error(op: Op[..., Any], steps: list[Step], values: dict[str, Any]) -> str | None:
    """What is wrong with the kernel that the call will run."""
    recorded = any(step.name == "recorded" for step in steps)
    running = op.recorded_form if recorded else op
    if next(step for step in steps if step.name == ("recorded" if recorded else "forward")).runs == "reference":
        return None
    kernel, _ = running.choose(values)
    return None if kernel is None else kernel.failure(running)


def _forward(op: Op[..., Any], values: dict[str, Any], given: bool, name: str = "forward") -> Step:
    if not op.kernels:
        return Step(name, "reference", f"{op.name} has no kernel")
    if not given:
        return Step(name, "kernel", ", ".join(f"{k.name} on {k.device}" for k in op.kernels))
    kernel, refused = op.choose(values)
    if kernel is not None and not kernel.usable:
        return Step(name, "reference", f"{kernel.name}: {kernel.state}")
    if kernel is not None and (why := writing.refuses(op, values)) is not None:
        return Step(name, "reference", f"{kernel.name}: {why}")
    if kernel is not None:
        wrong = kernel.failure(op)
        state = f"; {kernel.state}" if wrong is None else f", and raises {wrong.partition(':')[0]}"
        way = None if wrong is not None else kernel.says(op, values)
        return Step(name, kernel.name, f"the call lies in its domain{state}" + (f"; {way}" if way else ""))
    return Step(name, "reference", "; ".join(f"{k.name}: {why}" for k, why in refused))


def _recorded(op: Op[..., Any], forward: Step, backward: Step, given: bool) -> Step:
    """What runs while a gradient is recorded of what the reference does: no kernel."""
    if backward.runs != "autograd" or forward.runs == "reference":
        return forward
    if not given:
        return Step(forward.name, forward.runs, f"{forward.why}; the reference while a gradient is recorded")
    return Step(forward.name, "reference", f"its gradient is recorded; without one, {forward.runs}")


def _backward(op: Op[..., Any], values: dict[str, Any], given: bool) -> Step:
    followed = [t for p in op.signature.differentiable_inputs for t in tensors(values.get(p.name))]
    if not op.signature.differentiable_inputs or (not op.signature.differentiable_outputs and op.signature.outputs):
        return Step("backward", "none", "no tensor of it is differentiable")
    if given and not any(t.requires_grad for t in followed):
        return Step("backward", "none", "no input requires a gradient")
    why = node.why_not(op)
    ladder = op.functional if op.functional is not None and why is None else op
    if (op.recorded_by_reference and why is not None) or not ladder.has_rung:
        return Step("backward", "autograd", f"records what the reference does{_why_no_rung(op)}")
    above = ladder.backward
    how = "its declared gradient" if ladder.has_declared_gradient else "derived from the reference"
    how += ", a surrogate" if ladder.surrogate else ""
    runs = "kernel" if any(kernel.usable for kernel in above.kernels) else "reference"
    where = "recorded in C++" if why is None else f"recorded in Python, since {why}"
    again = ""
    if op.kernels and not above.kernels and not ladder.has_declared_gradient:
        again = "; it computes the forward again: @op.gradient declares a formula, @op.saving what to keep for it"
    return Step("backward", runs, f"{above.name}, {how}, {where}{again}")


def _why_no_rung(op: Op[..., Any]) -> str:
    if not op.opaque:
        return ""
    if op.random:
        return ", since it draws random numbers, and a gradient needs those that were drawn"
    if op.rung_is_too_long:
        return ", since its gradient would take more arguments than an operator can"
    return ", since it works in place" if any(p.mutated for p in op.signature.parameters) else ""


def _compile(op: Op[..., Any]) -> Step:
    if not op.opaque:
        return Step("compile", "inlined", "torch.compile sees through an operator without kernels")
    if op.compile == "inline":
        return Step("compile", "inlined", "as declared")
    if op.random or (behaviour.writes_what_it_follows(op.spec) and not op.has_rung):
        return Step("compile", "inlined", "torch.compile sees through an operator that draws, or works in place")
    if op.seen_through_by_compilers:
        return Step("compile", "inlined", "torch.compile sees through reference and declared gradient")
    return Step("compile", "called", f"graphs hold {op.qualname} as one call")


def _sharding(op: Op[..., Any], values: dict[str, Any], given: bool) -> Step | None:
    """Who says where DTensors must be; None where there are none to speak of."""
    from opwright.kit.dispatch import sharding  # which few calls are about

    found = sharding.of_call(op, values) if given else None
    if found is not None:
        own = found.source in ("declared", "derived", "carried")
        runs = "each device runs it on its pieces" if own else _OTHERWISE[found.source]
        return Step("sharding", found.source, f"{runs}: {found.why}")
    known = None if given else shard.declared(op)
    return None if known is None else Step("sharding", "declared", f"DTensors may be cut along {known[1].says}")


_OTHERWISE = {
    "reference": "PyTorch runs the reference step by step, and moves what a step needs",
    "replicates": "every device gets the whole of all tensors",
}


def _error(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Run the reference on fake tensors: it rejects what it would reject, and nothing is computed."""
    try:
        fake.imagine(op, args, kwargs)
    except Exception as e:
        if type(e).__module__.startswith(("torch._subclasses", "torch.fx")):
            return None  # the result depends on values, which fake tensors do not have
        return f"{type(e).__name__}: {e}"
    return None


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{spell(value.dtype)}{list(value.shape)} {value.device}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_show, value))}]"
    return repr(value)
