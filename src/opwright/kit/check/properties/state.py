"""Nothing is kept between calls: neither values, nor sizes, nor what an address once held. Nor does a call read what it
has written: a tensor that it writes to may be passed twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check import rising, shared
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject, whole
from opwright.kit.check.properties.determinism import differs
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, Results, copied, rebuilt

PROPERTY = Property(turn=170)


def cases(subject: Subject) -> Iterator[Case]:
    for case in subject.few(3):
        yield from (Case(case.sample, case.dtype, extra=how) for how in ("values", "sizes", "dtypes", "around"))
        yield from (Case(case.sample, case.dtype, extra=how) for how in ("middle", "later", "indices"))
        yield from (Case(case.sample, case.dtype, extra=how) for how in ("pairs", "one"))
        if case.sample == 0:
            yield Case(0, case.dtype, extra="many")
        if subject.op.spec.written:
            yield Case(case.sample, case.dtype, extra="shared")


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    return None if subject.has_kernel else "no kernel runs here"


def check(subject: Subject, case: Case) -> None:
    plain = Case(case.sample, case.dtype)
    sample = subject.draw(plain)
    if case.extra in ("shared", "one"):
        _shared(subject.op, sample) if case.extra == "shared" else _one(subject.op, sample, subject.seed)
        return
    oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed))
    _judge(oracle, attempt(subject.op, copied(sample)), "first")
    if case.extra in REWRITTEN:
        _rewritten(subject, sample, REWRITTEN[case.extra])
    elif case.extra == "later":
        _later(subject, sample, oracle)
    elif case.extra == "pairs":
        _pairs(subject, sample)
    elif case.extra == "many":
        _many(subject, sample, oracle)
    elif case.extra == "around":
        _around(subject, sample)
    else:
        _others(subject, case)
    _judge(oracle, attempt(subject.op, copied(sample)), "later")


def _shared(op: Op[..., Any], sample: Sample) -> None:
    """One tensor that is written to, in the place of another as well."""
    given = op.signature.bind(sample.args, sample.kwargs)
    alone = [p.name for p in op.signature.parameters if isinstance(given.get(p.name), Tensor)]
    pairs = [(p.name, other) for p in op.spec.written for other in alone if p.name in alone and other != p.name]
    tried = 0
    for name, other in pairs:

        def call(name: str = name, other: str = other) -> Sample:
            own = copied(sample)
            values = op.signature.bind(own.args, own.kwargs)
            return Sample((), {**values, other: values[name]})

        try:
            expected = accepted(lambda: reference_of(op)(call()))
        except NotApplicable:
            continue
        got = attempt(op, call())
        tried += 1
        for e, g in zip(expected, got, strict=True):
            try:
                torch.testing.assert_close(g, e, equal_nan=True)
            except AssertionError:
                raise Finding(
                    f"with one tensor for both {name}, which it writes to, and {other}, it differs from the reference"
                ) from None
    if not tried:
        raise NotApplicable("no tensor of it can stand for one that it writes to as well")


def _one(op: Op[..., Any], sample: Sample, seed: int) -> None:
    """One tensor in the place of all that have its shape gives what copies of it give."""
    if op.spec.written:
        raise NotApplicable("it writes to a tensor")
    first: dict[Any, Tensor] = {}
    one = rebuilt(sample, lambda t: first.setdefault((t.shape, t.dtype), t) if t.is_floating_point() else t)
    count = sum(t.is_floating_point() for t in _tensors(sample))
    if len(first) == count:
        raise NotApplicable("no two tensors of it have one shape")
    oracle = accepted(lambda: Oracle(reference_of(op), one, seed))
    expected, got = attempt(op, copied(one)), attempt(op, one)
    if differs(expected, got) is not None:
        try:
            oracle.judge(got)
        except Finding:
            raise Finding("with one tensor for several arguments it gives another result than with copies") from None


def _around(subject: Subject, sample: Sample) -> None:
    """What every caller shares is left as it was found."""
    own = copied(sample)
    with shared.settled():
        before = shared.look()
        attempt(subject.op, own)
        after = shared.look()
    for what in shared.changed(before, after):
        raise Finding(f"a call changes {what}")


def other_values(t: Tensor) -> Tensor:
    """Other values in the same memory."""
    return t.mul_(-0.5).add_(0.25)


def _turned(t: Tensor) -> Tensor:
    """The same values in another order, the first and the last where they were: neither they nor a sum tell."""
    if t.numel() < 4:
        return other_values(t)
    flat = t.flatten().clone()
    flat[1:-1] = flat[1:-1].flip(0)
    return t.copy_(flat.reshape(t.shape))


def _reversed(t: Tensor) -> Tensor:
    """The same integers in reverse; what rises from 0 may tell where parts begin, and stays."""
    flat: list[int] = t.flatten().tolist()
    if t.numel() < 2 or (t.dim() == 1 and flat[0] == 0 and flat == sorted(flat)):
        return t
    return t.copy_(t.flatten().flip(0).reshape(t.shape))


REWRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "values": other_values, "middle": _turned, "indices": _reversed,
}  # fmt: skip
"""How tensors are rewritten between two calls; the last is for integers."""


def _rewritten(subject: Subject, sample: Sample, change: Callable[[Tensor], Tensor]) -> None:
    """The same tensors, at the same addresses, with other values."""

    def rewrite(t: Tensor) -> Tensor:
        is_shared = 0 in t.stride() and t.numel() > 1
        fits = whole(t.dtype) if change is _reversed else t.is_floating_point() or t.is_complex()
        return change(t) if fits and not is_shared else t

    own = copied(sample)
    attempt(subject.op, own)
    together = subject.belonging(own) if change is _reversed else []
    together = together if len(together) > 1 else []  # one alone tells of no other
    changed = copied(rising.changed(own, lambda t: t if any(t is other for other in together) else rewrite(t)))
    if all(torch.equal(a, b) for a, b in zip(_tensors(changed), _tensors(sample), strict=True)):
        raise NotApplicable("there is nothing of it to rewrite so")
    oracle = accepted(lambda: Oracle(reference_of(subject.op), changed, subject.seed))
    _judge(oracle, attempt(subject.op, own), "next")
    _judge(oracle, attempt(subject.op, copied(changed)), "next")


SWAPS = 4
"""Pairs of elements that change places, one after the other. Of a tensor in which a cache looks at every seventh, all
four miss those it looks at once in 150 times, and all hit them as seldom."""


def quarters(t: Tensor) -> Tensor:
    """The tensor with multiples of a quarter, which add up to the same in any order."""
    return t.mul(4).round().div(4) if t.is_floating_point() and 0 not in t.stride() else t


def swapped(t: Tensor, rng: random.Random) -> Tensor:
    """The tensor with two different elements, neither the first nor the last, in each other's place."""
    flat: list[float] = t.flatten().tolist() if t.is_floating_point() and 0 not in t.stride() else []
    places = [(i, j) for i, j in (sorted(rng.sample(range(1, len(flat) - 1), 2)) for _ in range(8 * (len(flat) > 3)))]
    i, j = next(((i, j) for i, j in places if flat[i] != flat[j]), (0, 0))
    if i == j:
        return t
    new = t.flatten().clone()
    new[i], new[j] = flat[j], flat[i]
    return t.copy_(new.reshape(t.shape))


def _pairs(subject: Subject, sample: Sample) -> None:
    """The same tensors with two elements of each in the other's place: their sums, their first and last elements and
    all but two of the others are what they were, to the bit."""
    rng = subject.rng("pairs")
    own = rising.changed(copied(sample), quarters)
    attempt(subject.op, copied(own))
    for _ in range(SWAPS):
        before = copied(own)
        own = rising.changed(own, lambda t: swapped(t, rng))
        if all(torch.equal(a, b) for a, b in zip(_tensors(own), _tensors(before), strict=True)):
            raise NotApplicable("no two elements of it can change places")
        oracle = accepted(lambda: Oracle(reference_of(subject.op), own, subject.seed))  # noqa: B023
        _judge(oracle, attempt(subject.op, copied(own)), "next")


def spoil(results: Results) -> None:
    """Write to results, as their owner may."""
    for r in results:
        if r is not None and r.layout == torch.strided and (0 not in r.stride() or r.numel() < 2):
            r.fill_(SPOILT)


SPOILT = 77.0


def _later(subject: Subject, sample: Sample, oracle: Oracle) -> None:
    """A result that somebody still holds is left alone by later calls, and they by what is written to it."""
    first = [None if r is None else r.detach() for r in attempt(subject.op, copied(sample))]
    before = [None if r is None else r.clone() for r in first]

    def other(t: Tensor) -> Tensor:
        shared = 0 in t.stride() and t.numel() > 1
        return t if shared or not (t.is_floating_point() or t.is_complex()) else other_values(t)

    changed = rising.changed(copied(sample), other)
    accepted(lambda: reference_of(subject.op)(copied(changed)))
    attempt(subject.op, changed)
    found = differs(before, first)
    if found is not None:
        at, a, b = found
        raise Finding("a result is overwritten by a later call", index=at, expected=a, got=b)
    spoil(first)
    try:
        oracle.judge(attempt(subject.op, copied(sample)))
    except Finding as f:
        raise Finding(HANDED_OUT, index=f.index, expected=f.expected, got=f.got) from None


HANDED_OUT = "what a caller writes to a result comes out of a later call"
MANY_CALLS, MOST_SECONDS = 1200, {"cpu": 1.0, "cuda": 4.0}  # a GPU that others use as well takes its time


def _many(subject: Subject, sample: Sample, oracle: Oracle) -> None:
    """The same call, again and again."""
    first = attempt(subject.op, copied(sample))
    writes = any(p.mutated for p in subject.op.signature.parameters)
    seconds = MOST_SECONDS[torch.device(subject.device).type]
    own, end = copied(sample), time.monotonic() + (10 if subject.thorough else 1) * seconds
    for k in range(MANY_CALLS * (10 if subject.thorough else 1)):
        got = attempt(subject.op, copied(sample) if writes else own)
        if differs(first, got) is not None:
            try:
                oracle.judge(got)
            except Finding as f:
                message = f"in call {k + 2} of many calls, {f.message}"
                raise Finding(message, index=f.index, expected=f.expected, got=f.got) from None
        if time.monotonic() > end:
            break


def _others(subject: Subject, case: Case) -> None:
    """Calls of other sizes or dtypes in between."""
    others = [Case(case.sample, case.dtype, variant=v) for v in ("tail", "one", "zero")]
    if case.extra == "dtypes":
        others = [Case(case.sample, d) for d in subject.fast_dtypes if d != case.dtype]
    ran = 0
    for other in others:
        try:
            between = subject.draw(other)
            oracle = accepted(lambda: Oracle(reference_of(subject.op), between, subject.seed))  # noqa: B023
        except NotApplicable:
            continue
        _judge(oracle, attempt(subject.op, between), "next")
        ran += 1
    if not ran:
        raise NotApplicable("there is no other call to put in between")


def _tensors(sample: Sample) -> list[Tensor]:
    return [t for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)]


def _judge(oracle: Oracle, got: Results, which: str) -> None:
    try:
        oracle.judge(got)
    except Finding as f:
        raise Finding(
            f"in the {which} of several calls, {f.message}", index=f.index, expected=f.expected, got=f.got
        ) from None
