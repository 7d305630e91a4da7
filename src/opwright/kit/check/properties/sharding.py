"""Cut along a dimension that may be cut, the pieces of a call give together what the whole gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from opwright.kit.check import cut, values
from opwright.kit.check.calls import accepted, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import PLAIN
from opwright.kit.check.property import Property
from opwright.kit.check.report import NotApplicable
from opwright.kit.derive import shard
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.shard import Rule
from opwright.kit.truth.oracle import Oracle, rebuilt

PROPERTY = Property(turn=105)

PIECES = (2, 3, 7)
"""How many there are: evenly and unevenly large ones, and of small tensors empty ones."""


def skip(subject: Subject) -> str | None:
    op = subject.op
    if op.random:
        return "it draws random numbers, and runs its reference on DTensors"
    if op.functional is not None:
        return f"{op.functional.name} is tried, which serves it on DTensors"
    if any(p.mutated for p in op.signature.parameters):
        return "it writes to its arguments, and runs its reference on DTensors"
    if not op.home.opaque and shard.declared(op) is None:
        return "PyTorch sees through an operator without kernels"
    return None


FITS = "_fits.1"
"""The case that asks whether a declaration fits any sample at all; no dimension is called so."""


def cases(subject: Subject) -> Iterator[Case]:
    if subject.op.spec.sharding is not None:
        yield Case(0, subject.main, PLAIN, "", extra=FITS)
    for sample in range(subject.count):
        for variant in ("", "tail"):
            plain = Case(sample, subject.main, PLAIN, variant)
            for pieces in PIECES if not variant else PIECES[1:2]:
                yield from (replace(plain, extra=f"{rule}.{pieces}") for rule in _rules(subject, plain, pieces))
        for other in _others(subject, sample):
            few = 2 if other.values != NAN else 3
            yield from (replace(other, extra=f"{rule}.{few}") for rule in _rules(subject, other, few))


NAN = "nan"
"""The values of a case with a NaN in it, of which each device must make what all of them together do."""
MOST_OPTIONS = 6


def _others(subject: Subject, sample: int) -> Iterator[Case]:
    """The sample in a dtype of each other kind, with larger numbers, a NaN, and other options: what saturates, or
    looks at all of a tensor before it does something, is a sum or a cut for small numbers alone."""
    if shard.declared(subject.op) is None:
        return  # what follows from a reference follows whatever the numbers
    kinds: dict[object, torch.dtype] = {}
    for dtype in subject.dtypes:
        if dtype.itemsize > 2 or not dtype.is_floating_point:
            kinds.setdefault(_kind(dtype), dtype)
    yield from (Case(sample, d, PLAIN) for kind, d in kinds.items() if kind != _kind(subject.main))
    rng = subject.rng("sharding", sample)
    if subject.main.is_floating_point:
        yield from (Case(sample, subject.main, PLAIN, values=v) for v in values.scales(subject.main, rng)[:2])
        yield Case(sample, subject.main, PLAIN, values=NAN)
    options = subject.options(sample)
    for option in options if len(options) <= MOST_OPTIONS else rng.sample(options, MOST_OPTIONS):
        yield Case(sample, subject.main, PLAIN, values=option)


def _kind(dtype: torch.dtype) -> tuple[bool, bool, bool, bool]:
    return dtype.is_floating_point, dtype.is_complex, dtype == torch.bool, dtype == torch.float64


def _draw(subject: Subject, case: Case) -> Sample:
    if case.values != NAN:
        return subject.draw(case)
    rng = subject.rng(case.drawn)
    return rebuilt(subject.draw(replace(case, values="")), lambda t: _with_nan(t, rng))


def _with_nan(t: Tensor, rng: random.Random) -> Tensor:
    if not t.is_floating_point() or t.numel() < 2 or (0 in t.stride()):
        return t
    out = t.clone()
    out[tuple(rng.randrange(n) for n in t.shape)] = float("nan")
    return out


def _rules(subject: Subject, plain: Case, pieces: int) -> dict[str, Rule]:
    """The rules for a call, by the dimension that is cut. What a reference allows is asked for one sample alone."""
    asked = plain.sample == 0 and not plain.variant and not plain.values and pieces == PIECES[0]
    key = f"sharding {plain.id} {pieces}"
    if key not in subject._memo:
        try:
            sample = _draw(subject, plain)
            found = cut.rules(subject.op, sample, pieces)
            if found is None and asked:
                found = cut.carried(subject.op, sample, pieces, subject.rng(plain.id))
        except NotApplicable:
            found = []
        subject._memo[key] = {rule.dimension: rule for rule in found or []}
    known: dict[str, Rule] = subject._memo[key]
    return known


def check(subject: Subject, case: Case) -> None:
    if case.extra == FITS:
        cut.refuse_unused(subject)
        return
    plain = replace(case, extra="")
    dimension, _, pieces = case.extra.rpartition(".")
    rule = _rules(subject, plain, int(pieces)).get(dimension)
    if rule is None:
        raise NotApplicable("there is no such rule")
    sample = _draw(subject, plain)
    oracle = _oracle(subject, plain, sample)
    if case.values.startswith("2^") and not (oracle.fits and _is_finite(oracle)):
        raise NotApplicable("the whole leaves the range of its dtype")
    cut.prove(subject.op, sample, rule, int(pieces), oracle)


def _is_finite(oracle: Oracle) -> bool:
    return all(bool(t.isfinite().all()) for t in oracle.same if t is not None)


def _oracle(subject: Subject, plain: Case, sample: Sample) -> Oracle:
    """The answer for the whole call, which all its rules are held against."""
    known: tuple[str, Oracle] | None = subject._memo.get("sharding")
    if known is None or known[0] != plain.id:
        oracle: Oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed))
        known = subject._memo["sharding"] = plain.id, oracle
    return known[1]


def notes(subject: Subject) -> list[str]:
    """The dimensions that could be cut and are not declared, and those that no sample could prove."""
    return [*cut.never_cut(subject), *cut.could_be_declared(subject)]
