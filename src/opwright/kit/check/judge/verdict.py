"""What a judge found: a verdict with its class, and the smallest call that earns it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from opwright.kit.check.judge.arena import line
from opwright.kit.check.report import Report
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Sample

Class = Literal[
    "wrong values", "wrong gradient", "out of bounds", "race", "nondeterministic", "cheats", "crash", "timeout"
]
MOST_SHOWN = 64
"""Elements of a tensor that are written out."""


@dataclass
class Verdict:
    """Why a candidate is not like its reference, and the smallest call found that shows it."""

    cls: Class
    """wrong values, wrong gradient, out of bounds, race, nondeterministic, cheats, crash or timeout."""
    message: str
    property: str
    """The property that does not hold."""
    case: str
    """The case that it was found in, for `case=` and `--case`."""
    call: str
    """The smallest call that shows it, as one would write it."""
    arguments: list[dict[str, Any]]
    """The arguments of that call: name, dtype, shape, strides, and values where they are few."""
    index: list[int] | None = None
    """The worst element."""
    expected: str | None = None
    got: str | None = None
    replay: str = ""
    """What to type to run this case and no other."""
    tries: int = 0
    """Smaller calls that were tried."""
    sample: Sample | None = field(default=None, repr=False)
    """That call, to be made again."""

    def __str__(self) -> str:
        at = "" if self.index is None else f" at {self.index}: expected {self.expected}, got {self.got}"
        return f"{self.cls}: {self.message}{at}\n    {self.call}\n    {self.replay}"

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain values."""
        told = {name: value for name, value in vars(self).items() if name not in ("cls", "sample")}
        return {"class": self.cls, **told}


@dataclass(repr=False)
class Judgement(Report):
    """What became of a candidate that was held against a reference."""

    candidate: str = ""
    reference: str = ""
    verdict: Verdict | None = None
    """None where the candidate is like its reference, as far as was tried."""
    stopped: bool = False
    """Whether somebody ended it before all was tried."""

    @property
    def passed(self) -> bool:
        """Whether every property held in every case, and all were tried."""
        return not self.stopped and super().passed

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, for a file."""
        told = None if self.verdict is None else self.verdict.to_json()
        about = {"candidate": self.candidate, "reference": self.reference, "verdict": told, "stopped": self.stopped}
        return {**super().to_json(), **about}

    def __str__(self) -> str:
        return super().__str__() + ("" if self.verdict is None else f"\nVERDICT {self.verdict}")


def written_out(name: str, names: list[str], positions: int, sample: Sample) -> str:
    """A call as one would write it, its tensors in full where they are small."""
    given = dict(zip(names, sample.args, strict=False)) | sample.kwargs
    words = [
        _code(value) if n in names[: min(positions, len(sample.args))] else f"{n}={_code(value)}"
        for n, value in given.items()
    ]
    return f"{name}({', '.join(words)})"


def _code(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_code, value))}]"
    if not isinstance(value, Tensor):
        return repr(value)
    dtype = f"dtype=torch.{spell(value.dtype)}"
    usual = value.dtype in (torch.float32, torch.int64, torch.bool)
    if value.numel() > MOST_SHOWN or 0 in value.shape:
        strides = "" if value.is_contiguous() or 0 in value.shape else f" with strides {tuple(value.stride())}"
        return f"<{spell(value.dtype)}{list(value.shape)}{strides}>"
    dense = value.is_contiguous()
    held = value.detach() if dense else line(value.detach())  # with what lies between its elements
    text = f"torch.tensor({held.cpu().tolist()}{'' if usual else ', ' + dtype})"
    text = text.replace("inf", "math.inf").replace("nan", "math.nan")
    return text if dense else f"{text}.as_strided({tuple(value.shape)}, {tuple(value.stride())})"


def described(names: list[str], sample: Sample) -> list[dict[str, Any]]:
    """The arguments of a call as plain values."""
    given = dict(zip(names, sample.args, strict=False)) | sample.kwargs
    return [{"name": n, **_plain(value)} for n, value in given.items()]


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Tensor):
        told: dict[str, Any] = {
            "dtype": spell(value.dtype), "shape": list(value.shape), "strides": list(value.stride()),
            "offset": value.storage_offset(),
        }  # fmt: skip
        if value.numel() <= MOST_SHOWN:
            told["values"] = _numbers(value.detach().cpu().tolist())
        return told
    if isinstance(value, (list, tuple)):
        return {"list": [_plain(v) for v in value]}
    return {"value": value if isinstance(value, (bool, int, str)) or value is None else _numbers(value)}


def _numbers(value: Any) -> Any:
    """Numbers that JSON holds; others as texts."""
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    if isinstance(value, (bool, int)):
        return value
    finite = isinstance(value, float) and abs(value) < float("inf")
    return value if finite else str(value)
