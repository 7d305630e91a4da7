"""Examines one operator of the database: every form, every sample, every check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from tests.opinfo import database
from tests.opinfo.checks import CHECKS, COMPILED, FRESH, Subject, duplicate, shown
from tests.opinfo.wrapping import Call, Mends, NotExpressible

FORMS = ("transparent", "opaque")


@dataclass(frozen=True)
class Settings:
    """What a run is asked for."""

    device: str = "cpu"
    forms: tuple[str, ...] = FORMS
    checks: tuple[str, ...] = ("refusals", *CHECKS)
    samples: int = 3


@dataclass
class Finding:
    """A check that a form of an operator fails: what the first sample shows, and which samples do."""

    form: str
    check: str
    text: str
    samples: list[str] = field(default_factory=list)


@dataclass
class Result:
    """What was found out about an operator."""

    name: str
    checks: int = 0
    findings: list[Finding] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    left_out: str = ""
    """Why no operator could be made of it."""
    seconds: float = 0.0

    def find(self, form: str, check: str, text: str, sample: str = "") -> None:
        """Note a failure, with others of the same form and check."""
        found = [f for f in self.findings if (f.form, f.check) == (form, check)]
        if not found:
            self.findings.append(Finding(form, check, text))
        (found or self.findings[-1:])[0].samples.append(sample)


def examine(name: str, info: Any, settings: Settings, at: Callable[[str], None]) -> Result:
    """Try an operator in every way; `at` hears of each before it is tried."""
    result, began = Result(name), time.monotonic()
    reasons: list[str] = []
    for dtype, checks in _rounds(info, settings):
        for number, (args, kwargs) in enumerate(_samples(info, settings, dtype, reasons)):
            label = f"{str(dtype).removeprefix('torch.')} sample {number}"
            try:
                call = Call.of(name, info.op, args, kwargs)
            except Exception as error:
                reasons.append(shown(error))
                continue
            for form in settings.forms:
                applied = [c for c in checks if _worthwhile(c, form, dtype, number)]
                _try(call, form, applied, label, "empty" in name, result, at)
    if not result.checks:
        result.left_out = reasons[0] if reasons else "it has no samples for this device"
    result.seconds = round(time.monotonic() - began, 2)
    return result


def _rounds(info: Any, settings: Settings) -> Iterator[tuple[torch.dtype, list[str]]]:
    """The dtypes to try, and the checks for each: autocast casts float32 alone."""
    rest = [c for c in settings.checks if c != "autocast"]
    if rest:
        yield from ((dtype, rest) for dtype in database.dtypes(info, settings.device))
    if len(rest) < len(settings.checks) and torch.float32 in info.supported_dtypes(settings.device):
        yield torch.float32, ["autocast"]


def _worthwhile(check: str, form: str, dtype: torch.dtype, number: int) -> bool:
    """Whether a check is worth its time: compilers take long, and see the plain function in a transparent operator."""
    if check in COMPILED:
        return not dtype.is_complex and (form == "opaque" if check == "dynamic" else number == 0)
    return True


def _samples(info: Any, settings: Settings, dtype: torch.dtype, reasons: list[str]) -> list[tuple[Any, ...]]:
    try:
        return database.samples(info, settings.device, dtype, settings.samples)
    except Exception as error:
        reasons.append(f"its samples: {shown(error)}")
        return []


def _try(
    call: Call, form: str, checks: list[str], label: str, garbage: bool, result: Result, at: Callable[[str], None]
) -> None:
    """One form of one call, in every way."""

    def find(check: str, error: BaseException) -> None:
        text = str(error) if isinstance(error, AssertionError) else f"the harness raises {shown(error)}"
        result.find(form, check, text, label)

    at(f"{form} definition, {label}")
    try:
        mends, late = mend(call, form)
    except Exception as error:
        result.checks += 1
        find("definition", AssertionError(shown(error)))
        return
    if "refusals" in checks:
        result.checks += 1
        try:
            result.refused |= _compare_refusals(call, mends)
            assert not late, f"accepted in the first call, refused in the second: {late[0]}"
        except Exception as error:
            find("refusals", error)
    plain = call.over(call.reference(mends))
    warm = None
    for check in checks:
        if check == "refusals":
            continue
        at(f"{form} {check}, {label}")
        if warm is None or check in FRESH:
            warm = call.over(call.operator(form, mends))
        result.checks += 1
        try:
            CHECKS[check](Subject(warm, plain, call.given, garbage, mends.random))
        except Exception as error:
            find(check, error)


def mend(call: Call, form: str) -> tuple[Mends, list[str]]:
    """What the refusals of the first calls ask for, one after the other; and those that came late, in the second."""
    mends, late = Mends(), []
    for _ in range(8):
        operator = call.over(call.operator(form, mends))
        for turn in (1, 2):
            try:
                with torch.no_grad():
                    operator(*_copies(call))
            except ow.BadReference as refusal:
                mends = mends.follow(str(refusal))
                late += [str(refusal)] if turn == 2 else []
                break
            except Exception:  # the plain function may raise as well: the checks will tell
                return mends, late
        else:
            return mends, late
    raise NotExpressible("it is refused whatever one does")


def _compare_refusals(call: Call, mends: Mends) -> set[str]:
    """Hold what was refused against what the plain function does."""
    given = _copies(call)
    before = [duplicate(t) for t in given]
    state, versions = _random_state(given), [t._version for t in given]
    with torch.no_grad():
        out = call.over(call.reference())(*given)
    written = [
        name
        for name, now, was, version in zip(call.names(), given, before, versions, strict=True)
        if now._version != version or not _equal(now, was)  # batch_norm counts no versions
    ]
    done = Mends(
        clone=any(_shares(o, t) for i, o in enumerate(out) for t in (*given, *out[:i])),
        mutates=tuple(sorted(set(written))),
        random=not torch.equal(_random_state(given), state),
    )
    said = replace(mends, mutates=tuple(sorted(mends.mutates)))
    assert said == done, f"it does {done}, and was refused for {said}"
    return {n for n, seen in (("alias", done.clone), ("write", done.mutates), ("random", done.random)) if seen}


def _copies(call: Call) -> list[Tensor]:
    torch.manual_seed(0)
    return [duplicate(t) for t in call.given]


def _random_state(given: list[Tensor]) -> Tensor:
    on_gpu = [t for t in given if t.is_cuda]
    return torch.cuda.get_rng_state(on_gpu[0].device) if on_gpu else torch.get_rng_state()


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.layout != torch.strided:
        return True
    return bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)) if a.numel() else True


def _shares(a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    if a.layout != torch.strided or b.layout != torch.strided or not a.numel() or not b.numel():
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
