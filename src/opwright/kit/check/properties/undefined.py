"""An undefined incoming gradient is no error and no guess; only the wanted gradients are computed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from opwright.kit import private
from opwright.kit.check.calls import accepted, collect, first_line, flat, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.derivatives import by_formula, incoming, leaves_of, pack, through, truth_of
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, Results, copied

PROPERTY = Property(turn=50)


def skip(subject: Subject) -> str | None:
    op = subject.op
    if op.random:
        return "it draws random numbers"
    return None if op.signature.differentiable_inputs else "no tensor of it is differentiable"


def cases(subject: Subject) -> Iterator[Case]:
    rung = subject.op.is_gradient
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
            in_cpp = any(k.library is not None for k in op.kernels)
            instead = f"`wants(wanted, {i}) ? … : Tensor()`" if in_cpp else f"None where `wanted[{i}]` is False"
            raise Finding(f"gradient {i} was computed though nobody wanted it; let the kernel return {instead}")
        if w and there != bool(tensors(e)):
            raise Finding(f"gradient {i} was wanted and is {'there' if there else 'absent'}, unlike the reference's")
    oracle.judge(flat(got), "gradient")


def _undefined(subject: Subject, sample: Sample) -> None:
    """Each result in turn gets no gradient, the others one; and at last none gets any."""
    op = subject.op
    if not leaves_of(op, sample).leaves:
        raise NotApplicable("no tensor of it has a gradient in this dtype")
    results = accepted(lambda: reference_of(op)(copied(sample)))
    truth = accepted(lambda: truth_of(op, sample))
    formula = by_formula(op, 1) if op.has_rung and op.has_declared_gradient else None
    there = [i for i, r in enumerate(results) if r is not None]
    for without in [*([i] for i in there), there]:
        ones = [torch.ones_like(r) if r is not None and i not in without else None for i, r in enumerate(results)]
        packed = pack(sample, ones)
        try:
            oracle = Oracle(partial(_pull, op, truth), packed, subject.seed, formula)
        except NotApplicable:
            raise
        except Exception:
            raise NotApplicable("the reference takes no undefined gradient") from None
        try:
            oracle.judge(_pull(op, op, packed), "gradient")
        except NotApplicable:
            raise
        except Finding as f:
            message = f"with an undefined incoming gradient, {f.message}"
            raise Finding(message, index=f.index, expected=f.expected, got=f.got) from None
        except Exception as e:
            raise Finding(
                f"with an undefined incoming gradient it raised {type(e).__name__}: {first_line(e)}"
            ) from None


def _pull(op: Op[..., Any], function: Callable[..., Any], packed: Sample) -> Results:
    """The gradients of a packed call; where none comes in for a result, autograd hands on an undefined one."""
    *args, grads = packed.args
    given = leaves_of(op, Sample(tuple(args), packed.kwargs))
    out = collect(op, function(*given.sample.args, **given.sample.kwargs), given.sample)
    let = private.UndefinedGrad()
    pairs = zip(out, grads, strict=True)
    outs: list[Any] = [o if g is not None else let(o) for o, g in pairs if o is not None and o.requires_grad]
    if not outs:
        raise NotApplicable("no result of it has a gradient")
    return list(torch.autograd.grad(outs, given.leaves, [torch.ones_like(o) for o in outs], allow_unused=True))


def _each(subject: Subject, sample: Sample) -> None:
    """With one input alone requiring a gradient, it gets the same, and numbers get none."""
    op = subject.op
    results = accepted(lambda: reference_of(op)(copied(sample)))
    grads = incoming(results, "dense", torch.Generator().manual_seed(subject.seed))
    count = len(leaves_of(op, sample).leaves)
    if not count:
        raise NotApplicable("no tensor of it has a gradient in this dtype")
    whole = accepted(lambda: Oracle(through(op, truth_of(op, sample), 1), pack(sample, grads), subject.seed))
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
