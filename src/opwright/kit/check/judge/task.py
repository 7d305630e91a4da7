"""What is to be judged: a reference, the samples that somebody gave, and the cases that follow from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_origin

import torch
from torch import Tensor

from opwright.kit.check import options, values
from opwright.kit.check.cases import Case, Subject, whole
from opwright.kit.check.constants import Constants
from opwright.kit.check.drawn import Draw, source_of
from opwright.kit.check.judge.child import flat
from opwright.kit.check.judge.likeness import Likeness
from opwright.kit.check.judge.named import label
from opwright.kit.check.judge.numbers import numbers_of
from opwright.kit.check.layouts import PLAIN
from opwright.kit.check.report import NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.kinds import Kind, kind_of
from opwright.kit.spec.samples import Sample, read_sample
from opwright.kit.spec.schema import Parameter
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import copied, copy

KEPT = ("sizes", "layouts", "values", "options")
"""What may be asked to stay as the samples have it."""
HOW = (
    "give them as samples=[(x, y), (x, {'dim': 0})], one tuple of arguments for each call, or as a function that draws "
    "them: def cases(make): yield make(4, 7), {'dim': 0}"
)


@dataclass
class Task(Subject):
    """The cases of a candidate. Dtypes are those that its samples have, or that somebody asked for."""

    chosen: tuple[torch.dtype, ...] = ()
    own: tuple[torch.dtype, ...] = ()
    """By sample, the dtype of its numbers; empty where they are drawn in any."""
    keep: tuple[str, ...] = ()
    numbers: Constants = field(default_factory=Constants)
    defaults: dict[str, Any] = field(default_factory=dict)
    """Options of the reference that no sample gives, with what they are then."""
    fixed: tuple[Case, Sample] | None = None
    """A case with other arguments than its own: those that are left of it."""

    @property
    def dtypes(self) -> list[torch.dtype]:
        return list(self.chosen or dict.fromkeys(self.own) or (torch.float32,))

    @property
    def fast_dtypes(self) -> list[torch.dtype]:
        return self.dtypes

    @property
    def has_kernel(self) -> bool:
        return True

    @property
    def constants(self) -> Constants:
        return self.numbers

    def draw(self, case: Case) -> Sample:
        if self.fixed is not None and replace(case, extra="") == replace(self.fixed[0], extra=""):
            return copied(self.fixed[1])
        return super().draw(case)

    def _drawn(self, source: Op[..., Any], case: Case) -> Sample:
        if not self.chosen and self.own and case.sample < len(self.own) and case.dtype != self.own[case.sample]:
            raise NotApplicable("no sample has this dtype")
        return super()._drawn(source, case)

    def belonging(self, sample: Sample) -> list[Tensor]:
        return []  # nobody has declared any integers to be indices

    def options(self, s: int) -> list[str]:
        given = self.plain(s)
        if given is None:
            return []
        more = {n: v for n, v in self.defaults.items() if n not in given.kwargs}
        return [*options.options_of(self.op, Sample(given.args, {**given.kwargs, **more}))]

    def wanted(self, case: Case) -> bool:
        """Whether a case changes nothing that is to stay as the samples have it."""
        return case.layout != "far" and not any(kept in self.keep for kept in self.changes(case))

    def changes(self, case: Case) -> list[str]:
        """What of the samples a case changes, in the words of `keep`."""
        parts = case.values.split("+") if case.values else []
        set_ = [part for part in parts if "=" in part or "*" in part]
        changed = {
            "sizes": case.variant != "" or "thin" in case.values,
            "layouts": case.layout != PLAIN,
            "values": any("==" in p or (p not in set_ and "thin" not in p) for p in parts),
            "options": bool(set_),
        }
        return [kept for kept in KEPT if changed[kept]]


def read(
    reference: Any,
    samples: Any,
    *,
    device: str,
    seed: int,
    dtypes: Sequence[torch.dtype],
    keep: Sequence[str],
    deterministic: bool,
    candidate: Any,
) -> Task:
    """A task of what somebody gave, or an error that says what is missing."""
    if isinstance(reference, Op):
        samples = source_of(reference).draw_samples if samples is None else samples
        name, reference = reference.name, reference.reference
    else:
        name = label(reference)
    if not callable(reference):
        raise TypeError(f"check: like must be a function, got {reference!r}")
    if samples is None:
        raise ValueError(f"check: there are no samples to call it with; {HOW}")
    for kept in keep:
        if kept not in KEPT:
            raise ValueError(f"check: keep must name some of {', '.join(KEPT)}, got {kept!r}")
    for dtype in dtypes:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"check: dtypes must hold dtypes such as torch.bfloat16, got {dtype!r}")
    given, draws = _listed(samples, device, seed)
    _refuse(given)
    names, positions = _names(reference, given)
    given = [_by_position(s, names, positions) for s in given]
    own: tuple[torch.dtype, ...] = ()
    if draws is None:
        own = tuple(_main(s) for s in given)
        declared = _repeated(given, device)
    else:
        declared = _renamed(draws, names, positions)
    written = _probe(name, reference, given, names)
    holding = {n: [t for s in given for t in tensors(_at(s, names, n))] for n in names}
    optional, plain = kind_of(Tensor | None), kind_of(Tensor)
    assert optional is not None
    assert plain is not None
    parameters = tuple(
        Parameter(
            n, _words(reference, n) or (optional if _may_be_none(reference, n) else plain),
            keyword_only=n not in names[:positions],
            mutated=n in written, differentiable=all(t.is_floating_point() or t.is_complex() for t in holding[n]),
        )
        for n in names
    )  # fmt: skip
    defaults = _defaults(reference, names)
    parameters += tuple(Parameter(n, _words(reference, n) or plain, keyword_only=True) for n in defaults)
    likeness = Likeness(name, reference, declared, parameters, deterministic)
    return Task(
        likeness.as_op, device, seed, chosen=tuple(dtypes), own=own, keep=tuple(keep), numbers=numbers_of(candidate),
        defaults=defaults,
    )  # fmt: skip


# --- samples --------------------------------------------------------------------------------------------------------


def _listed(samples: Any, device: str, seed: int) -> tuple[list[Sample], Callable[..., Any] | None]:
    """All samples once, and the function that draws them, if one does."""
    if not callable(samples):
        if isinstance(samples, (Tensor, str, dict)) or not isinstance(samples, Iterable):
            raise TypeError(f"check: samples must be a list of calls, got {type(samples).__name__}; {HOW}")
        return [read_sample("samples", s) for s in samples], None
    make = Draw(torch.float32, device, seed)
    torch.manual_seed(seed)
    try:
        takes = bool(inspect.signature(samples).parameters)
    except (TypeError, ValueError):
        takes = True
    try:
        drawn = samples(make) if takes else samples()
        calls = list(drawn) if isinstance(drawn, Iterable) else None
    except Exception as e:
        raise ValueError(f"check: the samples cannot be drawn: {type(e).__name__}: {e}") from e
    if calls is None:
        raise TypeError(f"check: samples must yield calls, got {type(drawn).__name__}; {HOW}")
    found = [s if isinstance(s, Sample) else read_sample("samples", s) for s in calls]
    return found, samples if make.drawn else None


def _refuse(given: Sequence[Sample]) -> None:
    if not given:
        raise ValueError(f"check: there are no samples to call it with; {HOW}")
    if not any(tensors(v) for s in given for v in (*s.args, *s.kwargs.values())):
        raise ValueError(f"check: no sample holds a tensor; {HOW}")
    for t in (t for s in given for v in (*s.args, *s.kwargs.values()) for t in tensors(v)):
        if t.layout != torch.strided or t.is_quantized:
            raise TypeError(f"check: samples must hold dense tensors, got one of layout {t.layout}")


def _names(reference: Any, given: Sequence[Sample]) -> tuple[list[str], int]:
    """The names of all arguments that samples have, and how many of them go by their place."""
    most = max(len(s.args) for s in given)
    known: list[str] = []
    try:
        for p in inspect.signature(reference).parameters.values():
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                known.append(p.name)
            else:
                break
    except (TypeError, ValueError):
        pass  # a function of C's, which does not say
    names = [known[i] if i < len(known) else f"arg{i}" for i in range(most)]
    keywords = list(dict.fromkeys(k for s in given for k in s.kwargs))
    positions = next((i for i, n in enumerate(names) if n in keywords), most)  # what goes both ways goes by name
    return [*names, *(k for k in keywords if k not in names)], positions


def _by_position(sample: Sample, names: list[str], positions: int) -> Sample:
    rest = dict(zip(names[positions:], sample.args[positions:], strict=False))
    return Sample(sample.args[:positions], {**rest, **sample.kwargs})


def _renamed(draws: Callable[..., Any], names: list[str], positions: int) -> Callable[..., Any]:
    def declared(make: Draw) -> Iterator[Any]:
        for drawn in draws(make):
            sample = drawn if isinstance(drawn, Sample) else read_sample("samples", drawn)
            sample = _by_position(sample, names, positions)
            yield (*sample.args, sample.kwargs)

    return declared


def _repeated(given: Sequence[Sample], device: str) -> Callable[..., Any]:
    """A function that draws samples which are written out: as they are, or in other sizes with numbers of the same
    range."""

    def declared(make: Draw) -> Iterator[Any]:
        for sample in given:
            known = {**{str(i): v for i, v in enumerate(sample.args)}, **sample.kwargs}
            drawn = {n: _each(v, partial(_redrawn, make, device, sample, known, n)) for n, v in known.items()}
            kwargs = {n: drawn.pop(n) for n in sample.kwargs}
            yield (*drawn.values(), kwargs)

    return declared


def _redrawn(make: Draw, device: str, sample: Sample, known: dict[str, Any], name: str, t: Tensor) -> Tensor:
    main = _main(sample)
    if whole(t.dtype) and t.dtype != main and _belongs(t, name, known, main):
        return copy(t).to(device)
    low, high = _range(t)
    fresh = make(*t.shape, dtype=make.dtype if t.dtype == main else t.dtype, low=low, high=high)
    if make.sizes:
        return fresh
    make.drawn[-1] = copy(t).to(device, fresh.dtype)
    return make.drawn[-1]


def _belongs(t: Tensor, name: str, known: dict[str, Any], main: torch.dtype) -> bool:
    """Whether integers tell of other tensors, or of each other, so that none of them can be drawn alone."""
    apart = [o for v in known.values() for o in tensors(v) if whole(o.dtype) and o.dtype != main]
    return len(apart) > 2 or (t.numel() > 0 and values.role_of(name, t, t.flatten().tolist(), known) != "indices")


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return [_each(v, change) for v in value] if isinstance(value, (list, tuple)) and tensors(value) else value


def _range(t: Tensor) -> tuple[float, float]:
    if t.numel() == 0 or t.dtype == torch.bool:
        return -2.0, 2.0
    wide = t.detach().abs() if t.is_complex() else t.detach()
    wide = wide.double() if wide.is_floating_point() else wide
    finite = wide[wide.isfinite()]
    if finite.numel() == 0:
        return -2.0, 2.0
    low, high = finite.min().item(), finite.max().item()
    if t.is_complex():
        return -high, high
    return (low, high) if t.is_floating_point() else (low, high + 1)


def _main(sample: Sample) -> torch.dtype:
    """The dtype of a sample's numbers: of its first floating-point tensor, or of its first."""
    found = [t.dtype for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)]
    return next((d for d in found if d.is_floating_point or d.is_complex), found[0] if found else torch.float32)


# --- the reference --------------------------------------------------------------------------------------------------


def _probe(name: str, reference: Callable[..., Any], given: Sequence[Sample], names: list[str]) -> set[str]:
    """The arguments that the reference writes to. ValueError where it takes no sample, or gives another result each
    time."""
    why: list[str] = []
    written: set[str] = set()
    for sample in given:
        own, again = copied(sample), copied(sample)
        try:
            with torch.no_grad():
                first, second = flat(reference(*own.args, **own.kwargs)), flat(reference(*again.args, **again.kwargs))
        except Exception as e:
            why.append(f"{type(e).__name__}: {str(e).strip().partition(chr(10))[0]}")
            continue
        for n in names:
            pairs = zip(tensors(_at(sample, names, n)), tensors(_at(own, names, n)), strict=True)
            if any(not _equal(a, b) for a, b in pairs):
                written.add(n)
        if not written and not any(isinstance(r, Tensor) for r in first):
            raise ValueError(f"check: {name} gives no tensor, and writes to none of its arguments")
        if any(isinstance(r, Tensor) and not _equal(r, s) for r, s in zip(first, second, strict=True)):
            raise ValueError(f"check: {name} gives another result each time; what is random cannot be held against it")
    if len(why) == len(given):
        raise ValueError(f"check: {name} rejects every sample: {why[0]}")
    return written


def _equal(a: Tensor, b: Any) -> bool:
    if not isinstance(b, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _at(sample: Sample, names: list[str], name: str) -> Any:
    return dict(zip(names, sample.args, strict=False)).get(name, sample.kwargs.get(name))


def _may_be_none(reference: Any, name: str) -> bool:
    try:
        p = inspect.signature(reference).parameters.get(name)
    except (TypeError, ValueError):
        return False
    return p is not None and p.default is None


def _defaults(reference: Any, names: Sequence[str]) -> dict[str, Any]:
    """The numbers, flags and texts that a reference takes by name and no sample gives."""
    try:
        known = inspect.signature(reference).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = [p for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in names]
    return {p.name: p.default for p in named if isinstance(p.default, (bool, int, float, str))}


def _words(reference: Any, name: str) -> Kind | None:
    """The kind of a parameter that is one of a few texts, where the reference says so."""
    try:
        p = inspect.signature(reference, eval_str=True).parameters.get(name)
    except Exception:  # of whatever an annotation names
        return None
    kind = kind_of(p.annotation) if p is not None and get_origin(p.annotation) is Literal else None
    return kind if kind is not None and kind.words else None
