"""Measuring one case: verify each variant, time those that are right in turns, weigh their memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from statistics import median
from typing import Any

import torch
from torch import Tensor

from opwright.kit.bench import honest, memory
from opwright.kit.bench.given import Given
from opwright.kit.bench.limits import Limits
from opwright.kit.bench.spread import Spread, speedup, verdict
from opwright.kit.bench.timers import Call, Readings, clock_for, in_turns
from opwright.kit.explain import explain
from opwright.kit.op import Op
from opwright.kit.spec.domain import Cost
from opwright.kit.spec.measured import Case, Variant
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Maker, Sample, rung_sample
from opwright.kit.spec.values import has_gradient, tensors
from opwright.kit.truth.oracle import Finding
from opwright.kit.truth.tolerance import widen
from opwright.kit.truth.whole import Whole

Row = dict[str, Any]
Tell = Callable[[str, str], None]


def silent(step: str, variant: str) -> None:
    """Tell nobody."""


def variants(op: Op[..., Any], *, dynamic: bool = False) -> list[Variant]:
    """The ways to compute an operator, the eager reference first."""
    torch.compiler.reset()
    compiled = torch.compile(op.reference, dynamic=dynamic)
    return [
        Variant("eager", "reference", op.reference),
        Variant("compiled", "compiled", compiled),
        Variant("opwright", "operator", op),
        *op.spec.variants,
    ]


def measure(
    op: Op[..., Any],
    case: Case,
    *,
    ways: list[Variant] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seconds: float = 1.0,
    limits: Limits | None = None,
    without: Collection[str] = (),
    tell: Tell = silent,
) -> list[Row]:
    """The rows of one case, a variant each. What raises or is wrong gets a row that says so, and is not timed."""
    ways = [w for w in (ways or variants(op)) if w.name not in without]
    sample = case.arguments(op, Maker(dtype, device))
    given = _given(op, sample)
    rows = {w.name: blank(op, case, w, spell(dtype), device) for w in ways}
    cost = op.cost_of(*sample.args, **sample.kwargs)
    tell("verifying", "eager")
    truth, incoming = _truth(op, given, dtype)
    right: dict[str, Given] = {}
    for way in ways:
        tell("verifying", way.name)
        try:
            right[way.name] = _verify(way, given, truth, incoming, rows[way.name], op.random)
        except Exception as e:
            rows[way.name].update(trouble(e))
    good = [w for w in ways if rows[w.name]["status"] == "ok"]
    if not any(w.kind == "reference" for w in good):
        return list(rows.values())
    tell("timing", "forward")
    where = torch.device(device)
    renew = honest.Renewal(given)
    calls = [_forward(w, right[w.name]) for w in good]
    passes: dict[str, list[Readings]] = {"forward": in_turns(calls, clock_for(where), seconds=seconds, renew=renew)}
    if incoming is not None:
        tell("timing", "forward+backward")
        steps = [_training(w, right[w.name], incoming if w.same else None) for w in good]
        passes["forward_backward"] = in_turns(steps, clock_for(where), seconds=seconds, renew=renew)
    for name, found in passes.items():
        for way, readings in zip(good, found, strict=True):
            rows[way.name].update(_figures(name, found[0], readings))
    for way, call, readings in zip(good, calls, passes["forward"], strict=True):
        tell("verifying again", way.name)
        usual, of_baseline = (median(r.device) for r in (readings, passes["forward"][0]))
        try:
            if way.same and way.prepare is None and way is not good[0]:
                honest.refuse_kept(call, renew, usual, calls[0], of_baseline)
        except Finding as f:
            rows[way.name] = _wrong(op, case, way, dtype, device, f)
    for way, finding in _wrong_again(op, case, given, good, dtype, device, tell).items():
        rows[way.name] = _wrong(op, case, way, dtype, device, finding)
    good = [w for w in good if rows[w.name]["status"] == "ok"]
    least = {"forward": cost, "forward_backward": _both(op, sample, cost, dtype, device)}
    tell("weighing", "")
    for way in good:
        row = rows[way.name]
        row.update(_weigh(way, right[way.name], incoming, where))
        for name, c in least.items() if way.same else ():
            if c is not None and limits is not None and name in passes:
                row.update(_against(name, c, limits, row, spell(dtype)))
        if way.kind == "operator":
            said = explain(op, *right[way.name].fresh(grad=incoming is not None).args, **given.fresh().kwargs)
            row.update(runs=said.runs, steps=[vars(step) for step in said.steps])
    return list(rows.values())


def _wrong(op: Op[..., Any], case: Case, way: Variant, dtype: torch.dtype, device: str, finding: Finding) -> Row:
    """The row of a variant whose times say nothing."""
    return {**blank(op, case, way, spell(dtype), device), "status": "wrong", "why": f"when timed, {finding.message}"}


def _wrong_again(
    op: Op[..., Any], case: Case, given: Given, ways: list[Variant], dtype: torch.dtype, device: str, tell: Tell
) -> dict[Variant, Finding]:
    """The variants that are wrong for other values in the same memory, after all those calls."""
    found: dict[Variant, Finding] = {}
    if op.random:
        return found
    try:
        put = honest.write(given, _given(op, case.arguments(op, Maker(dtype, device, seed=2))))
        truth, incoming = _truth(op, given, dtype)
        kinds = honest.kinds_of(op.reference, given)
    except Exception:  # its author's cases take one kind of values
        return found
    for way in ways:
        if way.same and way.prepare is None:
            tell("verifying again", way.name)
            try:
                honest.refuse_lazy(way.function, given, kinds)
                honest.judge_again(way.function, given, put, truth, incoming)
            except Finding as f:
                found[way] = f
            except Exception as e:
                found[way] = Finding(f"it raised {trouble(e)['why']}")
    return found


def blank(op: Op[..., Any], case: Case, way: Variant, dtype: str, device: str) -> Row:
    """The row of a variant of which nothing is known yet."""
    return {
        "op": op.name,
        "qualname": op.qualname,
        "case": case.name,
        "family": case.family.name,
        "size": case.size,
        "stands": case.size == case.family.at,
        "dtype": dtype,
        "device": device,
        "variant": way.name,
        "kind": way.kind,
        "same": way.same,
        "status": "ok",
        "why": "",
    }


def trouble(e: BaseException) -> Row:
    """What a row says of a variant that raised."""
    text = str(e).strip().partition("\n")[0][:300] or type(e).__name__
    memory = isinstance(e, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(e)
    return {"status": "out of memory" if memory else "error", "why": f"{type(e).__name__}: {text}"}


def _given(op: Op[..., Any], sample: Sample) -> Given:
    return Given(
        sample.args,
        sample.kwargs,
        op.signature.bind,
        tuple(p.name for p in op.signature.differentiable_inputs if not p.mutated),
        tuple(p.name for p in op.signature.parameters if p.mutated),
    )


def _truth(op: Op[..., Any], given: Given, dtype: torch.dtype) -> tuple[Whole, list[Tensor] | None]:
    """The exact results, and the gradients to send in; None where nothing is differentiable."""
    with_grad = given.fresh(grad=True)
    out = [t for t in tensors(op.reference(*with_grad.args, **with_grad.kwargs)) if t.requires_grad]
    incoming = None
    if out and with_grad.leaves():
        make = Maker(seed=1)
        incoming = [make(*t.shape, dtype=t.dtype, low=-1, high=1).to(t.device) for t in out]
    exact = given.change(widen).results(op.reference, incoming)
    eager = given.results(op.reference, incoming)
    coarse = None
    if dtype == torch.float64:
        coarse = given.change(lambda t: widen(t, torch.float32)).results(op.reference, incoming)
    return Whole(exact, eager, coarse), incoming


def _verify(way: Variant, given: Given, truth: Whole, incoming: list[Tensor] | None, row: Row, random: bool) -> Given:
    """The arguments a variant takes, once it was seen to be right; notes in its row when it is not."""
    if way.prepare is not None:
        drawn = way.prepare(*given.fresh().args, **given.fresh().kwargs)
        args = drawn if isinstance(drawn, tuple) else (drawn,)
        kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
        given = _foreign(args[:-1] if kwargs else args, kwargs)
    own = way.prepare is not None
    got = given.results(way.function, incoming if way.same and not own else None)
    # Without gradients another path may run, and another graph be compiled: it is timed as well.
    plain = got if incoming is None else given.results(way.function, None)
    if not way.same:
        row["why"] = "another function, shown for scale; not compared"
    elif random:
        row["why"] = "draws random numbers; values not compared"
    else:
        try:
            error = max(truth.judge(got, outputs_alone=own), truth.judge(plain, outputs_alone=True))
        except Finding as f:
            row.update(status="wrong", why=f.message)
        else:
            row["error"] = float(f"{error:.3g}")
            row["why"] = "takes arguments of its own; gradients not compared" if own and incoming is not None else ""
    return given


def _foreign(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    """Arguments of a rival's own; gradients are taken of every tensor that can have one."""

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**{f"argument {i}": a for i, a in enumerate(args)}, **kwargs}

    names = [n for n, v in bind(args, kwargs).items() if any(map(has_gradient, tensors(v)))]
    return Given(args, kwargs, bind, tuple(names))


def _forward(way: Variant, given: Given) -> Call:
    ready = given.fresh()
    function, args, kwargs = way.function, ready.args, ready.kwargs
    if not kwargs:
        return lambda: function(*args)
    return lambda: function(*args, **kwargs)


def _training(way: Variant, given: Given, incoming: list[Tensor] | None) -> Call:
    ready = given.fresh(grad=True)
    function, args, kwargs = way.function, ready.args, ready.kwargs
    leaves = [t for _, t in ready.leaves()]
    grad = torch.autograd.grad
    if incoming is None:
        out = [t for t in tensors(function(*args, **kwargs)) if t.requires_grad]
        incoming = [torch.ones_like(t) for t in out]

    def step() -> Any:
        out = function(*args, **kwargs)
        sources = [out] if isinstance(out, Tensor) else [t for t in tensors(out) if t.requires_grad]
        return grad(sources, leaves, incoming, allow_unused=True)

    return step


def _figures(name: str, base: Readings, found: Readings) -> Row:
    ratio = speedup(base.device, found.device)
    figures: Row = {
        f"{name}_us": Spread.of([t * 1e6 for t in found.device]).to_json(),
        f"{name}_speedup": {**ratio.to_json(), "verdict": verdict(ratio)},
        f"{name}_readings": len(found.device),
    }
    if found.host:
        figures[f"{name}_host_us"] = Spread.of([t * 1e6 for t in found.host]).to_json()["p50"]
    return figures


def _both(op: Op[..., Any], sample: Sample, cost: Cost | None, dtype: torch.dtype, device: str) -> Cost | None:
    """What forward and backward cost together, where the author has said so for both."""
    if cost is None or not op.has_rung or not op.backward.has_cost:
        return None
    above = rung_sample(op, op.backward, Maker(dtype, device), sample)
    back = None if above is None else op.backward.cost_of(*above.args, **above.kwargs)
    return None if back is None else Cost(cost.bytes + back.bytes, cost.flops + back.flops)


def _against(name: str, cost: Cost, limits: Limits, row: Row, dtype: str) -> Row:
    """How near a pass comes to the machine's limit."""
    least = limits.seconds(cost, dtype)
    return {
        f"{name}_bytes": cost.bytes,
        f"{name}_flops": cost.flops,
        f"{name}_limit_us": float(f"{least * 1e6:.4g}"),
        f"{name}_fraction": float(f"{least * 1e6 / row[f'{name}_us']['p50']:.3g}"),
    }


def _weigh(way: Variant, given: Given, incoming: list[Tensor] | None, device: torch.device) -> Row:
    found: Row = {"forward_peak_bytes": memory.peak_bytes(_forward(way, given), device)}
    if incoming is not None:
        step = _training(way, given, incoming if way.same else None)
        found["forward_backward_peak_bytes"] = memory.peak_bytes(step, device)
        ready = given.fresh(grad=True)
        kept = memory.kept_bytes(
            lambda: way.function(*ready.args, **ready.kwargs), [*ready.args, *ready.kwargs.values()]
        )
        found["kept_bytes"], found["kept_beyond_inputs_bytes"] = kept
    return found
