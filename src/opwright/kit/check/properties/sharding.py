"""Cut along a dimension that may be cut, the pieces of a call give together what the whole gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opwright.kit.check import cut
from opwright.kit.check.calls import accepted, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import PLAIN
from opwright.kit.check.property import Property
from opwright.kit.check.report import NotApplicable
from opwright.kit.derive import shard
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.shard import Rule
from opwright.kit.truth.oracle import Oracle

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


def _rules(subject: Subject, plain: Case, pieces: int) -> dict[str, Rule]:
    """The rules for a call, by the dimension that is cut. What a reference allows is asked for one sample alone."""
    asked = plain.sample == 0 and not plain.variant and pieces == PIECES[0]
    key = f"sharding {plain.id} {pieces}"
    if key not in subject._memo:
        try:
            sample = subject.draw(plain)
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
    sample = subject.draw(plain)
    cut.prove(subject.op, sample, rule, int(pieces), _oracle(subject, plain, sample))


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
