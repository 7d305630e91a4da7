"""What got slower or uses more memory since a stored result, beyond the noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.kit.bench.results import KEY, Results
from opwright.kit.bench.spread import Spread
from opwright.kit.bench.units import spell_bytes

Row = dict[str, Any]
Case = tuple[str, str, str, str]

TOLERANCE = 0.15
"""A median that moved by less is not spoken of: processes differ by that much on the same code."""
SLACK = 4096
"""Bytes that memory may grow by: small tensors are padded as it pleases the allocator."""
TIMES = {"forward_speedup": "forward", "forward_backward_speedup": "forward + backward"}
WEIGHTS = {
    "kept_bytes": "bytes kept for the backward",
    "forward_peak_bytes": "peak memory of the forward",
    "forward_backward_peak_bytes": "peak memory of forward + backward",
}


@dataclass(frozen=True)
class Change:
    """One thing that got worse."""

    op: str
    case: str
    dtype: str
    device: str
    variant: str
    what: str
    text: str

    @property
    def where(self) -> Case:
        """The case to measure again."""
        return self.op, self.case, self.dtype, self.device

    def __str__(self) -> str:
        return f"{self.op} {self.case} {self.dtype} {self.device}, {self.variant}: {self.text}"


def compare(
    base: Iterable[Row], now: Iterable[Row], tolerance: float = TOLERANCE, without: Sequence[str] = ()
) -> list[Change]:
    """What got worse in the cases that were measured now. Times are compared as ratios to the eager reference of the
    same run, never as such; variants that are not the author's own (eager, compiled, rivals) are nobody's
    regression, but where their trouble leaves the author's unmeasured, that is one. Those `without` were not asked for.
    """
    measured: dict[tuple[Any, ...], dict[str, Row]] = {}
    for each in now:
        measured.setdefault(tuple(each[k] for k in KEY[:-1]), {})[each["variant"]] = each
    found: list[Change] = []

    def say(row: Row, what: str, text: str) -> None:
        found.append(Change(row["op"], row["case"], row["dtype"], row["device"], row["variant"], what, text))

    for was in base:
        rows = measured.get(tuple(was[k] for k in KEY[:-1]))
        if rows is None or was["status"] != "ok" or was["kind"] not in ("operator", "variant"):
            continue
        if was["variant"] in without:
            continue
        row = rows.get(was["variant"])
        if row is None:
            trouble = next((r for r in rows.values() if r["status"] != "ok"), None)
            whose = "" if trouble is None else f" ({trouble['variant']}: {trouble['status']}: {trouble['why']})"
            say(was, "status", f"was right, is now not measured{whose}")
            continue
        if row["status"] != "ok":
            say(row, "status", f"was right, is now {row['status']}: {row['why']}")
            continue
        for field, name in TIMES.items():
            if field in was and field in row:
                text = _slower(Spread.read(was[field]), Spread.read(row[field]), tolerance)
                if text:
                    say(row, field, f"{name} {text}")
        for field, name in WEIGHTS.items():
            if was.get(field) is not None and row.get(field, 0) > was[field] * 1.05 + SLACK:
                say(row, field, f"{name} {spell_bytes(was[field])} → {spell_bytes(row[field])}")
    return found


def _slower(was: Spread, now: Spread, tolerance: float) -> str:
    """Words when a ratio fell out of its spread and by more than the tolerance."""
    if now.p80 >= was.p20 or now.p50 > was.p50 * (1 - tolerance):
        return ""
    return (
        f"{was.p50 / now.p50:.2f}× slower: {was.p50:.2f}× as fast as eager ({was.p20:.2f}–{was.p80:.2f}) "
        f"→ {now.p50:.2f}× ({now.p20:.2f}–{now.p80:.2f})"
    )


def confirmed(
    base: Results,
    first: Sequence[Row],
    again: Callable[[Sequence[Case]], Sequence[Row]],
    *,
    tolerance: float = TOLERANCE,
    times: int = 2,
    without: Sequence[str] = (),
) -> list[Change]:
    """What got worse and stays so when its case is measured `times` more, each in a fresh process: a noisy minute, or
    a process with its memory in an unlucky place, does not come back."""
    found = compare(base.rows, first, tolerance, without)
    for _ in range(times):
        if not found:
            break
        rows = again(list(dict.fromkeys(change.where for change in found)))
        still = {(c.where, c.variant, c.what): c for c in compare(base.rows, rows, tolerance, without)}
        found = [still[c.where, c.variant, c.what] for c in found if (c.where, c.variant, c.what) in still]
    return found
