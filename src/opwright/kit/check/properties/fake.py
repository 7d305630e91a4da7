"""Results have the shapes, strides and dtypes that the fake kernel promises, in memory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.check.calls import accepted, flat, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.spec import probe
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import copied, rebuilt

PROPERTY = Property(turn=60)


def cases(subject: Subject) -> Iterator[Case]:
    small = (case for case in subject.cases() if not case.values and "=" not in case.variant)
    return (case for case in small if case.variant not in ("tail2", "big", "vast"))


def check(subject: Subject, case: Case) -> None:
    op, sample = subject.op, subject.draw(case)
    promised = accepted(lambda: _fake(op, sample))
    plain = accepted(lambda: reference_of(op)(copied(sample)))
    given = [(name, t) for name, v in op.signature.bind(sample.args, sample.kwargs).items() for t in tensors(v)]
    versions = [t._version for _, t in given]
    before = [t.clone() if op.signature.names[name].mutated else None for name, t in given]
    positional, named = op.signature.encode(op.signature.bind(sample.args, sample.kwargs))
    with torch.no_grad():
        got = flat(op.overload(*positional, **named)) if op.signature.outputs else op.overload(*positional, **named)
    for (name, t), version, old in zip(given, versions, before, strict=True):
        written = op.signature.names[name].mutated
        if old is not None and t._version == version and torch.allclose(old, t, rtol=0, atol=0, equal_nan=True):
            continue  # a buffer that this call leaves alone
        if t.numel() and (t._version != version) != written:
            raise Finding(
                f"{name} is {'' if written else 'not '}written by declaration and {'not ' if written else ''}marked so"
            )
    if not op.signature.outputs:
        return
    _compare(got, promised, plain)
    _own_memory(got, given)


def _fake(op: Any, sample: Sample) -> list[Tensor | None]:
    mode = private.fake_tensor_mode()
    with mode, torch.no_grad():
        faked = rebuilt(sample, mode.from_tensor)
        positional, named = op.signature.encode(op.signature.bind(faked.args, faked.kwargs))
        return flat(op.overload(*positional, **named))


def _compare(got: list[Tensor | None], promised: list[Tensor | None], plain: list[Tensor | None]) -> None:
    """`plain`: what the reference gives. Beside a tensor that is expanded, PyTorch's fake tensors may promise other
    strides than its operators give, and a kernel that gives those of the reference is not to blame."""
    if len(got) != len(promised):
        raise Finding(f"{len(got)} results, the fake kernel promises {len(promised)}")
    for i, (g, p) in enumerate(zip(got, promised, strict=True)):
        name = "result" if len(got) == 1 else f"result {i}"
        if (g is None) != (p is None):
            raise Finding(f"the {name} is {'absent' if g is None else 'there'}, the fake kernel promises otherwise")
        if g is None or p is None:
            continue
        if g.dtype != p.dtype:
            raise Finding(f"the {name} is {spell(g.dtype)}, the fake kernel promises {spell(p.dtype)}")
        if g.shape != p.shape:
            raise Finding(f"the {name} has shape {spell(g.shape)}, the fake kernel promises {spell(p.shape)}")
        if g.device != p.device:
            raise Finding(f"the {name} is on {g.device}, the fake kernel promises {p.device}")
        if g.numel() and _steps(g) != _steps(p) and _steps(g) != _steps(plain[i]):
            raise Finding(f"the {name} has strides {g.stride()}, the fake kernel promises {p.stride()}")
        if g.numel() and g.storage_offset() != p.storage_offset():
            raise Finding(
                f"the {name} begins at element {g.storage_offset()}, the fake kernel promises {p.storage_offset()}"
            )
        if g.requires_grad:
            raise Finding(f"the {name} requires a gradient, though nobody records")


def _steps(t: Tensor | None) -> list[int]:
    """The strides that matter."""
    return [] if t is None else [k for k, s in zip(t.stride(), t.shape, strict=True) if s > 1]


def _own_memory(got: list[Tensor | None], given: list[tuple[str, Tensor]]) -> None:
    seen: list[Tensor] = []
    for i, g in enumerate(got):
        if g is None or not g.numel():
            continue
        name = "result" if len(got) == 1 else f"result {i}"
        for parameter, t in given:
            if probe.aliases(g, t):
                raise Finding(f"the {name} shares memory with the argument {parameter}")
        if any(probe.aliases(g, t) for t in seen):
            raise Finding(f"the {name} shares memory with another result")
        seen.append(g)
