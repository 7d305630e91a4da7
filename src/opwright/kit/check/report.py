"""What a check found: failures, results of properties, and the report that holds them."""

from __future__ import annotations

import builtins
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from opwright.kit.truth.oracle import Finding as Finding
from opwright.version import __version__

NUMBERS = re.compile(r"-?\b(\d+(\.\d+)?(e[-+]?\d+)?|nan|inf)\b(, -?\d+)*")


class NotApplicable(Exception):
    """Raised for a case that says nothing: it is not counted."""


@dataclass
class Failure:
    """One case in which a property does not hold."""

    property: str
    op: str
    dtype: str
    layout: str
    sample: str
    """Which sample, and its arguments in words."""
    message: str
    index: list[int] | None = None
    """The worst element."""
    expected: str | None = None
    got: str | None = None
    replay: str = ""
    """The command that runs this case and no other."""

    def __str__(self) -> str:
        return f"{self.op} {self.property}: {self.message} [{self.sample}]\n    {self.replay}"


@dataclass
class Result:
    """What became of one property of one operator."""

    op: str
    property: str
    cases: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: str | None = None
    """Why it did not run; None when it did."""
    notes: list[str] = field(default_factory=list)
    """What else it has to say, where it holds."""
    seconds: float = 0.0
    home: str = ""
    """The operator that it belongs to, by its qualified name; `op` may be a gradient of it."""

    @builtins.property  # the name means something else here
    def passed(self) -> bool:
        """Whether nothing was found. A skipped property has found nothing, and says why it was skipped."""
        return not self.failures


@dataclass
class Report:
    """What a check found. Printed, it is a table of properties and the failures below it."""

    results: list[Result]
    seed: int
    device: str
    notes: list[str] = field(default_factory=list)
    """What else there is to know about how it was run."""

    @property
    def passed(self) -> bool:
        """Whether every property held in every case."""
        return all(r.passed for r in self.results)

    @property
    def count(self) -> str:
        """How many failures there are, in words."""
        return "1 failure" if len(self.failures) == 1 else f"{len(self.failures)} failures"

    @property
    def failures(self) -> list[Failure]:
        """The failures of all properties."""
        return [f for r in self.results for f in r.failures]

    @property
    def mistakes(self) -> list[tuple[Failure, int]]:
        """The failures, of those that say the same in other numbers the first, and how many more there are. An error
        that ended several properties is one mistake, which names them."""
        found: dict[tuple[str, ...], list[Failure]] = {}
        for f in self.failures:
            where = "" if "raised" in f.message else f.property
            found.setdefault((f.op, where, NUMBERS.sub("0", f.message)), []).append(f)
        return [(_with_others(alike), len(alike) - 1) for alike in found.values()]

    @property
    def cases(self) -> int:
        """How many cases ran."""
        return sum(r.cases for r in self.results)

    @property
    def summary(self) -> str:
        """What came of it in a few words, such as `34 properties hold in 950 cases`."""
        tried = sum(1 for r in self.results if r.cases)
        if not self.passed:
            return f"{self.count}: {plural(tried, 'property')} in {plural(self.cases, 'case')}"
        return f"{plural(tried, 'property')} {'holds' if tried == 1 else 'hold'} in {plural(self.cases, 'case')}"

    def __str__(self) -> str:
        lines = []
        width = max((len(r.property) for r in self.results), default=0)
        for op in dict.fromkeys(r.op for r in self.results):
            mine = [r for r in self.results if r.op == op]
            lines.append(f"{op}: {sum(r.cases for r in mine)} cases in {sum(r.seconds for r in mine):.1f} s")
            for r in mine:
                lines.append(f"  {r.property:{width}}  {verdict(r)}")
        lines += [f"FAILED {f}{and_more(others)}" for f, others in self.mistakes] + self.notes
        seconds = sum(r.seconds for r in self.results)
        lines.append(f"{self.summary}, seed {self.seed}, {self.device}, {seconds:.1f} s")
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, for a file."""
        return {
            "version": 1,
            "opwright": __version__,
            "torch": torch.__version__,
            "seed": self.seed,
            "device": self.device,
            "passed": self.passed,
            "notes": self.notes,
            "results": [asdict(r) for r in self.results],
        }

    def raise_if_failed(self) -> None:
        """Raise AssertionError with the failures, if there are any."""
        if not self.passed:
            raise AssertionError("\n".join(str(f) for f in self.failures))


def _with_others(alike: list[Failure]) -> Failure:
    first = alike[0]
    others = [name for name in dict.fromkeys(f.property for f in alike) if name != first.property]
    return replace(first, message=f"{first.message}; also in {', '.join(others)}") if others else first


def and_more(others: int) -> str:
    """What is said of failures that are not shown."""
    return f" (and {others} more like it)" if others else ""


def plural(count: int, word: str) -> str:
    """A number of things.

    >>> plural(1, "case"), plural(2, "property")
    ('1 case', '2 properties')
    """
    many = word[:-1] + "ies" if word.endswith("y") else word + "s"
    return f"{count} {word if count == 1 else many}"


def verdict(r: Result) -> str:
    """A result in a few words."""
    if r.failures:
        return f"FAILED in {len(r.failures)} of {r.cases} cases"
    if r.skipped is not None:
        return f"skipped: {r.skipped}"
    return f"{r.cases} cases"
