"""Judging a candidate: what somebody gave is read, the candidate gets its process, and the court its case."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

import torch

from opwright.kit.check import guard
from opwright.kit.check.judge import task as tasks
from opwright.kit.check.judge import trials
from opwright.kit.check.judge.court import Court, Progress
from opwright.kit.check.judge.likeness import Likeness
from opwright.kit.check.judge.named import Missing, find, label, way_of
from opwright.kit.check.judge.stand import Stand
from opwright.kit.check.judge.verdict import Judgement
from opwright.kit.check.pool import INSIDE
from opwright.kit.check.run import Stopped
from opwright.kit.spec import words
from opwright.kit.spec.require import spell


def judge(
    candidate: Any,
    like: Any,
    samples: Any = None,
    *,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    dtypes: Sequence[torch.dtype] = (),
    gradients: bool | None = None,
    deterministic: bool = True,
    keep: Sequence[str] = (),
    timeout: float = 60.0,
    memory: float = 4.0,
    progress: Progress | None = None,
) -> Judgement:
    """Hold a candidate against a reference. Everything but the candidate runs here."""
    if os.environ.get(INSIDE):
        raise RuntimeError("check: it was called by a file that is itself loaded for a check; call it in another file")
    for name in only:
        if name not in trials.NAMES:
            hint = words.near(name, trials.NAMES) or f"; the properties are {', '.join(trials.NAMES)}"
            raise ValueError(f"check: there is no property {name!r} of functions{hint}")
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"check: the device must be cpu or cuda, got {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("check: there is no GPU here; `opwright doctor` says why")
    if not isinstance(candidate, str) and not callable(candidate):
        raise TypeError(f"check: the candidate must be a function, or its name as module:function, got {candidate!r}")
    if timeout <= 0 or memory <= 0:
        raise ValueError(f"check: timeout and memory must be above 0, got {timeout} and {memory}")
    given = [f"{flag} {value}" for flag, value in (("--like", like), ("--samples", samples)) if isinstance(value, str)]
    reference, drawn = _found(like), _found(samples)
    with torch.random.fork_rng(devices=[]):
        task = tasks.read(
            reference, drawn, device=device, seed=seed, dtypes=dtypes, keep=keep, deterministic=deterministic,
            candidate=candidate,
        )  # fmt: skip
        task.thorough = thorough is not None
        stand = Stand(way_of(candidate), device, timeout, int(memory * 2**30))
        unbuilt = guard.missing(kind)  # or it is now: here, where nothing limits it
        if unbuilt is not None:
            stand.leave_unwatched(unbuilt)
        cast(Likeness, task.op).stand = stand
        court = Court(task, stand, label(candidate), only or trials.NAMES, case, gradients, progress)
        named = isinstance(candidate, str) and isinstance(like, str)
        court.replay = f"opwright check {candidate} {' '.join(given)}" if named else ""
        options = {
            "device": device, "dtypes": dtypes, "keep": keep, "gradients": gradients, "deterministic": deterministic,
            "timeout": timeout, "memory": memory, "thorough": thorough,
        }  # fmt: skip
        court.flags, court.options = _flags(**options), _options(**options)
        try:
            court.hold(thorough)
        except KeyboardInterrupt:
            report = _report(court, candidate, like)
            report.stopped = True
            raise Stopped(report) from None
        finally:
            stand.close()
    report = _report(court, candidate, like)
    known = court.met or court.notes  # which say why it is not tried
    if case is not None and not report.failures and not known:
        raise ValueError(
            f"check: no case {case!r} ran; the same seed, property and options must be given that it was found with"
        )
    if not report.cases and not report.failures and case is None:
        raise ValueError(f"check: no case of the samples applies: {'; '.join(court.reasons[:2])}")
    return report


def _report(court: Court, candidate: Any, like: Any) -> Judgement:
    task = court.first
    return Judgement(court.results, task.seed, task.device, court.notes, label(candidate), label(like), court.verdict)


USUAL = {
    "device": "cpu", "dtypes": (), "keep": (), "gradients": None, "deterministic": True, "timeout": 60.0, "memory": 4.0,
    "thorough": None,
}  # fmt: skip
"""What options are where nobody gives them."""


def _flags(**options: Any) -> list[str]:
    """Options as the command line has them, without those that are as usual."""
    words = []
    for name, value in options.items():
        if name in ("dtypes", "keep"):
            words += [f"--{name.removesuffix('s')} {spell(v) if name == 'dtypes' else v}" for v in value]
        elif value != USUAL[name]:
            words.append(f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name} {value}")
    return words


def _options(**options: Any) -> str:
    """The same as Python has them, each after a comma."""
    told = {n: list(v) if n in ("dtypes", "keep") else v for n, v in options.items() if n == "dtypes" or v != USUAL[n]}
    return "".join(f", {n}={v!r}" for n, v in told.items() if v != [])


def _found(given: Any) -> Any:
    """What was given, or what it names."""
    if not isinstance(given, str):
        return given
    try:
        return find(given)
    except Missing:
        raise
    except Exception as e:
        raise ImportError(f"check: {given} cannot be imported: {type(e).__name__}: {e}") from e
