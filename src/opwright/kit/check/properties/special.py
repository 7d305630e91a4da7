"""NaN, infinities, signed zeros and subnormal numbers are treated as the reference treats them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from opwright.kit.check import rising
from opwright.kit.check.afford import enough
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, Results, copied
from opwright.kit.truth.skipping import Skipping, left_out
from opwright.kit.truth.tolerance import smallest

PROPERTY = Property(turn=20)

KINDS = ("nan", "inf", "zero", "subnormal", "large")
WHOLE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "zero": 0.0, "-zero": -0.0}
"""What a row or a tensor may hold alone."""


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    return None if subject.has_kernel else "no kernel runs here, so the reference would only meet itself"


def cases(subject: Subject) -> Iterator[Case]:
    floats = [d for d in subject.fast_dtypes if d.is_floating_point]
    for s in range(subject.count):
        for kind in KINDS:
            yield from (Case(s, d, extra=kind) for d in floats)
            yield from (Case(s, d, variant="tail", extra=kind) for d in floats[:1])
        for value in WHOLE:
            yield from (Case(s, d, extra=f"{value}-{part}") for d in floats[:1] for part in ("row", "all"))


def check(subject: Subject, case: Case) -> None:
    plain = subject.draw(replace(case, extra=""))
    enough(subject.op, plain, case)
    rng = subject.rng(case.id)
    changed = False

    def sprinkle(t: Tensor) -> Tensor:
        nonlocal changed
        if not t.dtype.is_floating_point or t.numel() == 0 or (0 in t.stride() and t.numel() > 1):
            return t
        changed = True
        value, _, part = case.extra.rpartition("-")
        return _filled(t, WHOLE[value], part, rng) if value else _sprinkled(t, case.extra, rng)

    sample = rising.changed(plain, sprinkle)
    if not changed:
        raise NotApplicable("it has no floating-point tensor")
    oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed))
    if case.extra == "large" and not oracle.pointwise:
        raise NotApplicable("whether a sum overflows depends on its order")
    if oracle.weighs and case.extra.startswith(("nan", "inf", "-inf")):
        raise NotApplicable("whether a weight is 0 depends on how it is computed")
    got = attempt(subject.op, copied(sample))
    if case.extra == "large" and case.dtype == torch.float64:
        got = [told(g, s) for g, s in zip(got, oracle.same, strict=True)] if len(got) == len(oracle.same) else got
    if case.extra == "subnormal" and case.dtype == torch.float64 and len(got) == len(oracle.same):
        got = [_kept(g, s) for g, s in zip(got, oracle.same, strict=True)]
    try:
        try:
            oracle.judge(got)
        except Finding:
            if (
                oracle.pointwise
                or not case.extra.startswith(("nan", "inf", "-inf"))
                or not _skips(subject, oracle, sample, got)
            ):
                raise
        if case.extra.startswith("zero") and oracle.pointwise and not oracle.selects:
            same_signs(oracle, got)
    except Finding as f:
        f.call = sample
        raise


def _skips(subject: Subject, oracle: Oracle, sample: Sample, got: Results) -> bool:
    """Whether results are right for who leaves out what has a weight of 0, and in sums of infinities keeps an infinity
    where the reference comes upon one less another."""
    reference = reference_of(subject.op)

    def skipping(given: Sample) -> Results:
        with Skipping():
            return reference(given)

    try:
        other = Oracle(skipping, sample, subject.seed)
        if not any(bool(t.isnan().any()) for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)):
            got = [_infinite(g, s) for g, s in zip(got, oracle.same, strict=True)]
        other.judge(left_out(got, oracle.same, other.same))
    except Exception:
        return False
    return True


def _infinite(got: Tensor | None, reference: Tensor | None) -> Tensor | None:
    if got is None or reference is None or got.shape != reference.shape or got.dtype != reference.dtype:
        return got
    return torch.where(reference.isnan() & got.isinf(), reference, got)


def told(got: Tensor | None, reference: Tensor | None) -> Tensor | None:
    """A result, less what the reference makes NaN of: no wider dtype says what an infinity less another would be. Nor
    whether one was too large on the way alone, so that a number which is not small may stand in its place."""
    if got is None or reference is None or got.shape != reference.shape or got.dtype != reference.dtype:
        return got
    excused = reference.isnan()
    if not reference.is_complex():
        excused |= reference.isinf() & got.isfinite() & (got * reference.sign() >= 1)
    return torch.where(excused, reference, got)


def _kept(got: Tensor | None, reference: Tensor | None) -> Tensor | None:
    """A result, less what the reference makes 0 of and is next to it: no wider dtype says what a square would have been
    that vanished on the way."""
    if got is None or reference is None or got.shape != reference.shape or got.dtype != reference.dtype:
        return got
    tiny = got.abs() < 16 * torch.finfo(got.dtype).smallest_normal if got.is_floating_point() else got != got
    return torch.where((reference == 0) & tiny, reference, got)


def _filled(t: Tensor, value: float, part: str, rng: random.Random) -> Tensor:
    """The tensor with one row or column of a value, or of nothing else."""
    out = t.clone()
    if part == "all" or t.dim() < 2:
        return out.fill_(value)
    d = rng.randrange(t.dim())
    d = t.dim() - 2 if rng.random() < 0.5 else d
    return out.index_fill_(d, torch.tensor([rng.randrange(t.shape[d])], device=t.device), value)


def _sprinkled(t: Tensor, kind: str, rng: random.Random) -> Tensor:
    info = torch.finfo(t.dtype)
    small = smallest(t.dtype)
    values = {
        "nan": [float("nan"), -float("nan")],  # 0/0 has the sign, which a sort by bits takes for the least of all
        "inf": [float("inf"), float("-inf")],
        "zero": [0.0, -0.0],
        "subnormal": [small, -small, 16 * small, info.smallest_normal / 2],
        "large": [info.max, -info.max, info.max / 2],
    }[kind]
    out = t.clone()
    where = torch.tensor([rng.random() < 0.4 for _ in range(min(t.numel(), 4096))])
    if not bool(where.any()):
        where[rng.randrange(len(where))] = True
    mask = torch.zeros(t.numel(), dtype=torch.bool)
    mask[: len(where)] = where
    mask[-1] = mask[-1] | (rng.random() < 0.5)  # what a vector loop leaves to its tail
    chosen = torch.tensor([rng.choice(values) for _ in range(int(mask.sum()))], dtype=torch.float64)
    flat = out.reshape(-1).clone()
    flat[mask.to(t.device)] = chosen.to(t.device, t.dtype)
    return out.copy_(flat.reshape(t.shape))


def same_signs(oracle: Oracle, got: Results) -> None:
    """The sign of a zero, where the reference has one opinion on it in every precision."""
    for i, (g, same, wide) in enumerate(zip(got, oracle.same, oracle.wide, strict=True)):
        if g is None or same is None or wide is None or not g.dtype.is_floating_point:
            continue
        zero = (g == 0) & (same == 0) & (wide == 0)
        agreed = torch.signbit(same) == torch.signbit(wide)
        bad = zero & agreed & (torch.signbit(g) != torch.signbit(same))
        if bool(bad.any()):
            at = bad.nonzero()[0].tolist()
            sign = "-0.0" if bool(torch.signbit(same[tuple(at)])) else "0.0"
            other = "0.0" if sign == "-0.0" else "-0.0"
            name = "result" if len(got) == 1 else f"result {i}"
            message = f"the {name} has the other sign of zero"
            raise Finding(message, index=at, expected=sign, got=other, shape=g.shape)
