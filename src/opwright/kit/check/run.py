"""Running the check: which properties of which rungs, in which process, and what becomes of their cases."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright.kit.build import toolchain
from opwright.kit.build.library import Library
from opwright.kit.build.trouble import BuildError, Refused, WrongKernel
from opwright.kit.check import failures, lines
from opwright.kit.check.calls import REJECTED
from opwright.kit.check.cases import Subject
from opwright.kit.check.pool import INSIDE, borrowed, interrupt
from opwright.kit.check.properties import NAMES
from opwright.kit.check.property import (
    alone,
    attempt,
    call_of,
    cases_of,
    chosen,
    concerned,
    facts_of,
    in_turn,
    notes_of,
)
from opwright.kit.check.report import Failure, NotApplicable, Report, Result, plural
from opwright.kit.op import Op
from opwright.kit.spec import words
from opwright.kit.workers.travel import Stranded
from opwright.kit.workers.worker import Died, Worker

MOST_FAILURES = 3
"""After so many failures of a property its further cases tell nothing new."""
Progress = Callable[[str, str, str], None]
"""Called with operator, property and what is tried of it: the case at hand, and how many there were."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with what was found by then."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


def rungs(op: Op[..., Any]) -> list[Op[..., Any]]:
    """The operator, its form that saves, its gradient, and what lies above that if it has a kernel. Of a rung or form,
    itself alone."""
    if op.home is not op:
        return [op]
    op.define_gradient()
    return [rung for rung in op.ladder if op in (rung, rung.form_of, rung.parent) or rung.kernels]


def run(
    operators: Sequence[Op[..., Any]],
    *,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    rung: str | None = None,
    sanitized: bool = False,
    covered: bool = False,
    here: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check operators; with several, two at a time. `here` is in this process, where a debugger looks on."""
    if os.environ.get(INSIDE):
        raise RuntimeError("check: it was called by a file that is itself loaded for a check; call it in another file")
    for name in only:
        if name not in NAMES:
            hint = words.near(name, in_turn()) or f"; the properties are {', '.join(in_turn())}"
            raise ValueError(f"there is no property {name!r}{hint}")
    for op in (op for op in operators if not isinstance(op, Op)):
        hint = "; any other function is held against another by like=…" if callable(op) else ""
        raise TypeError(f"check: its argument must be an operator, got {type(op).__name__}{hint}")
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"check: the device must be cpu or cuda, got {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("check: there is no GPU here; `opwright doctor` says why")
    modes = {"sanitize": sanitized, "coverage": covered or thorough is not None}
    more = [mode for mode, asked in modes.items() if asked]
    wanted = [p for p in in_turn() if (p in only if only else facts_of(p).serves(kind, more))]
    unfit: dict[Op[..., Any], list[Result]] = {}
    here = here or os.environ.get("OPWRIGHT_CHECK_HERE", "") not in ("", "0")
    asked = Check(device, seed, thorough, case, rung, wanted, progress or (lambda op, name, tried: None), here)

    def check(op: Op[..., Any]) -> list[Result]:
        try:
            return unfit[op] or asked.check(op)
        except Exception as e:  # which is the tool's own: the other operators go on, and the report is written
            return [failures.own_error(Result(op.name, "check", cases=1), e, op, seed)]

    try:
        for op in operators:
            try:
                unfit[op] = _build(op, kind)
            except Exception as e:
                unfit[op] = [failures.own_error(Result(op.name, "check", cases=1), e, op, seed)]
        if len(operators) > 1 and toolchain.cores() > 1 and not here:
            with ThreadPoolExecutor(2) as pool:
                try:
                    found = list(pool.map(check, operators))
                except KeyboardInterrupt:
                    pool.shutdown(wait=False, cancel_futures=True)
                    asked.stopped = True
                    interrupt()
                    raise
        else:
            found = [check(op) for op in operators]
    except KeyboardInterrupt:
        raise Stopped(Report([*asked.finished], seed, device, list(asked.notes))) from None
    every = [r for results in found for r in results]
    asked.notes.update(dict.fromkeys(lines.never_ran(asked.lines)))
    for op, r in ((op, r) for op, results in zip(operators, found, strict=True) for r in results):
        r.home = op.home.qualname
    return Report(every, seed, device, [*asked.notes, *(n for r in every for n in r.notes)])


def _build(op: Op[..., Any], device: str) -> list[Result]:
    """Build what will be needed, here, where its progress and its errors are seen. A kernel that does not compile, fit
    its schema or run here is one failure, and nothing else is asked of the operator."""
    from opwright.kit.check import guard

    unfit, told = [], set[Library]()
    for rung in rungs(op):
        for kernel in (kernel for kernel in rung.kernels if kernel.device == device):
            if kernel.library is None or kernel.library in told:
                continue
            try:
                ready, why = kernel.ready(rung), None
            except WrongKernel as e:
                unfit.append(failures.unfit(rung, kernel.name, str(e)))
                continue
            except (BuildError, Refused) as e:  # of the source, which all its kernels share
                ready, why = None, str(e)
            if ready is None:
                idle = f"it cannot be checked, since its kernel {kernel.name} does not run here: {kernel.state}"
                unfit.append(failures.unfit(rung, kernel.name, why or idle))
                told.add(kernel.library)
    if device == "cpu":
        guard.unavailable()
    return unfit


@dataclass
class Check:
    """What is asked of every operator in one check."""

    device: str
    seed: int
    thorough: float | None
    case: str | None
    rung: str | None
    wanted: list[str]
    progress: Progress
    here: bool = False
    notes: dict[str, None] = field(default_factory=dict)
    finished: list[Result] = field(default_factory=list)
    lines: list[lines.Told] = field(default_factory=list)
    """What searches say of the lines of kernels."""
    stopped: bool = False  # by an interrupt: what dies from now on was ended by us

    def check(self, op: Op[..., Any]) -> list[Result]:
        """All results of one operator."""
        with contextlib.ExitStack() as stack:
            kinds = ("", *(name for name in alone() if name in self.wanted))
            workers = {kind: stack.enter_context(borrowed(kind)) for kind in kinds}
            run = OperatorCheck(self, op, workers)
            start = time.monotonic()
            ladder = [rung for rung in rungs(op) if self.rung in (None, rung.name)]
            wanted = [(rung, name) for rung in ladder for name in concerned(rung, self.wanted)]
            results = {(rung.name, name): run.check(rung, name, self.seed) for rung, name in wanted}
            seed = self.seed
            while self.thorough is not None and time.monotonic() - start < self.thorough:
                seed += 1
                for rung, name in wanted:
                    known = results[rung.name, name]
                    if facts_of(name).once or known.failures or known.cases == 0:
                        continue
                    more = run.check(rung, name, seed)
                    known.cases += more.cases
                    known.failures += more.failures
                    known.seconds = round(known.seconds + more.seconds, 3)
                    if time.monotonic() - start >= self.thorough:
                        break
            if any(r.failures for r in results.values()):
                for worker in workers.values():
                    worker.stop()  # whatever the operator did to its process, it did to itself alone
        return list(results.values())


class OperatorCheck:
    """The check of one operator, with the processes that it runs in: a plain one, and those for lone properties."""

    def __init__(self, asked: Check, op: Op[..., Any], workers: dict[str, Worker]) -> None:
        self.asked, self.op, self.workers = asked, op, workers
        self._told = 0.0
        self._not_applicable: dict[str, None] = {}
        """Why cases of the property at hand did not apply, in their order."""
        self._found: dict[str, list[str]] = {}
        """By rung, cases that a search has found to lead somewhere."""
        self._sizes: dict[int, str | None] = {}
        """By sample, why other sizes of it were rejected; None once some were taken."""

    def check(self, rung: Op[..., Any], name: str, seed: int) -> Result:
        """One property of one rung."""
        result = Result(rung.name, name)
        self._not_applicable.clear()
        self._sizes.clear()
        start = time.perf_counter()
        worker = self.workers[name if facts_of(name).process == "alone" else ""]
        try:
            if self.asked.here:
                self._here(rung, result, seed)
            else:
                self._define(worker)
                self._in_worker(worker, result, seed)
        except Stranded as e:
            if facts_of(name).process != "shared":
                result.skipped = f"it needs a process of its own: {e}"
            else:
                self.asked.notes[f"{self.op.name}: it was checked in this process, which a crash would end: {e}"] = None
                self._here(rung, result, seed)
        except Exception as e:
            result.cases += 1
            failures.own_error(result, e, self.op, self.asked.seed)
        if result.cases == 0 and result.skipped is None:
            reasons = list(self._not_applicable)
            shown = "; ".join(reasons[:2]) + (f"; and {len(reasons) - 2} more" if len(reasons) > 2 else "")
            result.skipped = f"no case applies{': ' * bool(shown)}{shown}"
            told = bool(reasons) or rung.home is rung  # a lack of samples, once
            if name == "forward" and told and self.asked.case is None and all(r.startswith(REJECTED) for r in reasons):
                result.failures.append(failures.nothing_accepted(rung, reasons))
        if name == "forward" and rung.home is rung and rung.kernels and self.asked.case is None:
            self._tell_of_sizes(rung)
        result.seconds = round(time.perf_counter() - start, 3)
        for failure in result.failures:
            if failure.replay.startswith("--only"):
                failure.replay = _replay(self.op, failure.replay, self.asked.device)
        if seed == self.asked.seed:
            self.asked.finished.append(result)
        return result

    def _define(self, worker: Worker) -> None:
        if self.asked.stopped:
            raise KeyboardInterrupt
        try:
            worker.define(self.op)
        except Died as e:
            if self.asked.stopped:
                raise KeyboardInterrupt from None
            raise Stranded(f"{self.op.name}: defining it in a process of its own ended that: {e}") from None

    def _here(self, rung: Op[..., Any], result: Result, seed: int) -> None:
        """In this process, for operators that cannot leave it."""
        subject = Subject(rung, self.asked.device, seed, self.asked.thorough is not None, case=self.asked.case)
        result.skipped, cases = cases_of(subject, result.property)
        for case in cases:
            if not chosen(subject, case, self.asked.case):
                continue
            self._tell(result, case.id)
            self._count(result, attempt(subject, result.property, case), case.id)
            if len(result.failures) >= MOST_FAILURES:
                break
        whole = result.skipped is None and self.asked.case is None and not result.failures
        result.notes = notes_of(subject, result.property) if whole else []

    def _tell(self, result: Result, case: str) -> None:
        """Show what is tried, now and then."""
        now = time.monotonic()
        if now - self._told > 0.05:
            self._told = now
            self.asked.progress(result.op, result.property, f"{case}, {plural(result.cases, 'case')}")

    def _tell_of_sizes(self, rung: Op[..., Any]) -> None:
        """A sample that was tried in no other sizes says little, and its author should know."""
        for sample, why in self._sizes.items():
            if why is not None and why.startswith(REJECTED):
                self.asked.notes[
                    f"{rung.name}: sample {sample} was tried in its own sizes alone, since {why}; draw its tensors by "
                    f"`make`, indices too: `make(n, dtype=torch.int64, low=0, high=k)`"
                ] = None

    def _count(self, result: Result, outcome: Failure | NotApplicable | None, case: str = "") -> None:
        sample, _, variant = case.partition(".")[0].partition("+")[0].partition("-")
        if variant and "=" not in variant and variant != "vast":
            told = str(outcome) if isinstance(outcome, NotApplicable) else None
            self._sizes[int(sample)] = None if told is None else self._sizes.get(int(sample), told)
        if isinstance(outcome, NotApplicable):
            self._not_applicable.setdefault(str(outcome))
        else:
            result.cases += 1
        if isinstance(outcome, Failure):
            result.failures.append(outcome)

    def _seconds(self) -> float:
        """What a search of one rung may take; 0: the usual. A third of what a thorough check may."""
        if self.asked.thorough is None:
            return 0.0
        return self.asked.thorough / 3 / max(1, sum(1 for rung in rungs(self.op) if rung.kernels))

    def _in_worker(self, worker: Worker, result: Result, seed: int) -> None:
        done: list[str] = []
        while len(result.failures) < MOST_FAILURES:
            current: dict[str, Any] = {}
            try:
                worker.ask(
                    home=self.op.home.qualname, rung=result.op, property=result.property, device=self.asked.device,
                    seed=seed, thorough=self.asked.thorough is not None, case=self.asked.case, done=done,
                    most=MOST_FAILURES - len(result.failures), seconds=self._seconds(),
                    found=self._found.get(result.op, []),
                )  # fmt: skip
                while "end" not in (answer := worker.listen()):
                    if "case" in answer:
                        current = answer
                        done.append(answer["case"])
                        self._tell(result, answer["case"])
                    else:
                        told, reason = answer["failure"], answer["not_applicable"]
                        outcome = Failure(**told) if told else None if reason is None else NotApplicable(reason)
                        self._count(result, outcome, current["case"])
                        if answer.get("leaves"):  # its GPU is of no more use
                            worker.stop()
                            self._define(worker)
                            break
                else:
                    if "error" in answer:
                        raise RuntimeError(f"{answer['error']}: {answer['message']}")
                    result.skipped, result.notes = answer["skipped"], answer["notes"]
                    if answer["found"] is not None:
                        self._found[result.op] = answer["found"]["cases"]
                        told = (answer["found"][part] for part in ("lines", "bound"))
                        self.asked.lines.append(lines.Told(self.op.home.name, result.op, *told))
                    return
            except Died as e:
                if e.code == -signal.SIGINT or self.asked.stopped:
                    raise KeyboardInterrupt from None
                if not current:
                    self._define(worker)
                    raise RuntimeError(str(e)) from None
                rung = next(each for each in self.op.ladder if each.name == result.op)
                subject = Subject(rung, self.asked.device, seed, self.asked.thorough is not None)
                words = call_of(subject, result.property, current["case"])
                self._count(result, failures.crash(result, current, words, str(e), seed))
                self._define(worker)


def _replay(op: Op[..., Any], failure: str, device: str) -> str:
    """What to type so that exactly this case runs again."""
    what = failures.named(op)
    failure = failure.replace(" --case all", "")
    if what is None and " --case " not in failure:
        return f'ow.check({op.home.name}, only=["{failure.split()[1]}"], seed={failure.split()[3]})'
    if what is None:
        _, only, _, case, _, seed = failure.split()
        return f'ow.check({op.home.name}, only=["{only}"], case="{case}", seed={seed})'
    flags = f" --device {device}" if device != "cpu" else ""
    return f"opwright check {what} {failure}{flags}"
