"""An undefined incoming gradient is no error and no guess; only the wanted gradients are computed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.check.calls import accepted, collect, first_line, flat, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.derivatives import incoming, leaves_of, pack, through, truth_of
from opwright.kit.check.oracle import Oracle, copied
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors

PROPERTY = Property(turn=50)


def skip(subject: Subject) -> str | None:
    op = subject.op
    if op.random:
        return "it draws random numbers"
    return None if op.signature.differentiable_inputs else "no tensor of it is differentiable"


def cases(subject: Subject) -> Iterator[Case]:
    rung = subject.op.rung is not None
    for case in subject.few(6):
        if rung:
            count = len(subject.op.signature.outputs)
            # A mask of nothing is left out: autograd does not call for it.
            masks = list(itertools.product("01", repeat=count))[1:] if count < 4 else [("1",) * count]
            yield from (Case(case.sample, case.dtype, extra="wanted" + "".join(m)) for m in masks)
        else:
            yield Case(case.sample, case.dtype, extra="undefined")
            yield Case(case.sample, case.dtype, extra="each")


def check(subject: Subject, case: Case) -> None:
    sample = subject.draw(Case(case.sample, case.dtype))
    if case.extra.startswith("wanted"):
        _wanted(subject, sample, [c == "1" for c in case.extra.removeprefix("wanted")])
    elif case.extra == "undefined":
        _undefined(subject, sample)
    else:
        _each(subject, sample)


def _wanted(subject: Subject, sample: Sample, mask: list[bool]) -> None:
    """A rung asked for some gradients gives those, and nothing for the others."""
    op = subject.op
    assert op.rung is not None
    masked = Sample(sample.args, {**sample.kwargs, op.rung.wanted: mask})
    oracle = accepted(lambda: Oracle(reference_of(op), masked, subject.seed))
    with torch.no_grad():
        got = op(*masked.args, **masked.kwargs)
        every = op.calls.direct(*masked.args, **masked.kwargs)
    for i, (w, g, e) in enumerate(zip(mask, got, every, strict=True)):
        there = bool(tensors(g))
        if there and not w:
            raise Finding(f"gradient {i} was computed though nobody wanted it")
        if w and there != bool(tensors(e)):
            raise Finding(f"gradient {i} was wanted and is {'there' if there else 'absent'}, unlike the reference's")
    oracle.judge(flat(got), "gradient")


def _undefined(subject: Subject, sample: Sample) -> None:
    """Each result in turn gets no gradient, the others one; and at last none gets any."""
    op = subject.op
    count = len([o for o in accepted(lambda: reference_of(op)(copied(sample))) if o is not None])
    truth = accepted(lambda: truth_of(op, sample))
    for without in [*range(count), None]:
        found: list[list[Tensor | None]] = []
        for function in (truth, op):
            given = leaves_of(op, sample)
            if not given.leaves:
                raise NotApplicable("no tensor of it has a gradient in this dtype")
            out = [
                o for o in collect(op, function(*given.sample.args, **given.sample.kwargs), given.sample)
                if o is not None
            ]  # fmt: skip
            let = private.UndefinedGrad()
            outs: list[Any] = [let(o) if without in (i, None) else o for i, o in enumerate(out) if o.requires_grad]
            if not outs:
                raise NotApplicable("no result of it has a gradient")
            ones = [torch.ones_like(o) for o in outs]
            try:
                grads = torch.autograd.grad(outs, given.leaves, ones, allow_unused=True)
            except Exception as e:
                if function is truth:
                    raise NotApplicable("the reference takes no undefined gradient") from None
                raise Finding(
                    f"with an undefined incoming gradient it raised {type(e).__name__}: {first_line(e)}"
                ) from None
            found.append(list(grads))
            if function is op:
                _compare(found[0], found[1], given.leaves)


def _compare(expected: list[Tensor | None], got: list[Tensor | None], leaves: list[Tensor]) -> None:
    for i, (e, g, leaf) in enumerate(zip(expected, got, leaves, strict=True)):
        if g is not None and g.shape != leaf.shape:
            raise Finding(f"with an undefined incoming gradient, gradient {i} has shape {spell(g.shape)}")
        ours = torch.zeros_like(leaf) if g is None else g
        theirs = torch.zeros_like(leaf) if e is None else e
        if not torch.allclose(ours, theirs, rtol=2e-2, atol=1e-2, equal_nan=True):
            raise Finding(f"with an undefined incoming gradient, gradient {i} is not the reference's")


def _each(subject: Subject, sample: Sample) -> None:
    """With one input alone requiring a gradient, it gets the same, and numbers get none."""
    op = subject.op
    results = accepted(lambda: reference_of(op)(copied(sample)))
    grads = incoming(results, "dense", torch.Generator().manual_seed(subject.seed))
    count = len(leaves_of(op, sample).leaves)
    if not count:
        raise NotApplicable("no tensor of it has a gradient in this dtype")
    whole = Oracle(through(op, truth_of(op, sample), 1), pack(sample, grads), subject.seed)
    for only in range(count):
        given = leaves_of(op, sample, lambda i, only=only: i == only)  # type: ignore[misc]
        out = collect(op, op(*given.sample.args, **given.sample.kwargs), given.sample)
        pairs = [(o, g) for o, g in zip(out, grads, strict=True) if o is not None and g is not None and o.requires_grad]
        if not pairs:
            if whole.same[only] is not None:
                raise Finding(f"with input {only} alone requiring a gradient, no result has one")
            continue
        outs, gs = zip(*pairs, strict=True)
        got: list[Any] = [None] * count
        got[only] = torch.autograd.grad(outs, given.leaves, gs, allow_unused=True)[0]
        filled = [g if i == only else s for i, (g, s) in enumerate(zip(got, whole.same, strict=True))]
        whole.judge(filled, "gradient")
