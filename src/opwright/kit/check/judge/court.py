"""One candidate before the judge: each property in turn, until one does not hold; then what kind of mistake that is,
and the smallest call that shows it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from opwright.kit.check import bounds, failures, sizes
from opwright.kit.check.calls import accepted, attempt, in_range, reference_of
from opwright.kit.check.cases import Case, describe
from opwright.kit.check.judge import trials
from opwright.kit.check.judge.process import Charge
from opwright.kit.check.judge.shrink import Shrink
from opwright.kit.check.judge.stand import Own, Stand
from opwright.kit.check.judge.task import Task
from opwright.kit.check.judge.verdict import Class, Verdict, described, written_out
from opwright.kit.check.properties.determinism import differs
from opwright.kit.check.properties.special import same_signs
from opwright.kit.check.property import chosen
from opwright.kit.check.report import NUMBERS, Failure, Finding, NotApplicable, Result, plural
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, Results, copied

AGAIN = 3
"""Processes that a wrong result is asked for again in."""
PATIENCE = 3.0
"""Seconds that a call may take at most while a smaller one is searched for."""
Progress = Callable[[str, str, str], None]


@dataclass
class Wrong:
    """What is wrong with a call, and of which kind that is."""

    cls: Class
    finding: Finding
    sample: Sample | None
    by: str = ""
    """The property that shows it in other calls too; empty: one call by itself does."""


class Court:
    """One candidate's case, from the first property to the verdict."""

    def __init__(
        self,
        task: Task,
        stand: Stand,
        name: str,
        wanted: Sequence[str],
        case: str | None,
        gradients: bool | None,
        progress: Progress | None,
    ) -> None:
        self.first = self.task = task
        self.stand, self.name, self._case, self._gradients = stand, name, case, gradients
        self._wanted = [n for n in trials.NAMES if n in wanted]
        self._progress = progress or (lambda op, name, tried: None)
        self.results: list[Result] = []
        self.notes: list[str] = []
        self.reasons: list[str] = []
        self.verdict: Verdict | None = None
        self.replay = ""
        self.flags: list[str] = []
        self.options = ""
        self.met = False
        """Whether there was any case to try."""

    def hold(self, thorough: float | None) -> None:
        """Try the properties in turn, with further seeds while there is time for them."""
        end = time.monotonic() + (thorough or 0.0)
        try:
            self.stand.load()
        except Charge as c:
            wrong = Wrong(cast(Class, c.cls), Finding(c.message), None)
            self._charge(Result(self.name, "forward", cases=1), None, wrong)
            return
        known = {name: Result(self.name, name) for name in self._wanted}
        self.results = list(known.values())
        first = True
        while first or (self.verdict is None and thorough is not None and time.monotonic() < end):
            for result in known.values():
                if self.verdict is None and (first or result.cases):
                    self._try(result, end if not first else None)
            self._tell_of_the_unwatched()
            self.task, first = replace(self.task, seed=self.task.seed + 1, _memo={}), False
        if self.verdict is not None:
            self.results = [r for r in self.results if r.cases or r.failures]

    def _try(self, result: Result, end: float | None) -> None:
        start = time.perf_counter()
        try:
            result.skipped = trials.skip(self.task, result.property, self._gradients)
            if result.skipped is None:
                self._cases(result, end)
            elif "insists" in result.skipped:
                self._note(f"gradients were not tried: {result.skipped}")
        except (Own, Exception) as e:  # which is the tool's own
            result.cases += 1
            error = e.error if isinstance(e, Own) else e
            failures.own_error(result, error, self.task.op, self.task.seed)
        result.seconds = round(result.seconds + time.perf_counter() - start, 3)

    def _cases(self, result: Result, end: float | None) -> None:
        for case in trials.cases(self.task, result.property):
            if not chosen(self.task, case, self._case):
                continue
            if end is not None and time.monotonic() > end:
                return
            self.met = True
            wrong = self._attempt(result.property, case)
            if isinstance(wrong, NotApplicable):
                self.reasons.append(str(wrong))
                continue
            result.cases += 1
            self._progress(self.name, result.property, plural(result.cases, "case"))
            if wrong is not None:
                self._charge(result, case, self._settled(result.property, case, wrong))
                return
        if not result.cases:
            result.skipped = "no case applies"

    def _attempt(self, name: str, case: Case) -> Wrong | NotApplicable | None:
        self.stand.raised = False
        try:
            trials.check(self.task, name, case)
        except NotApplicable as e:
            return NotApplicable(*e.args)
        except Finding as f:
            if self.stand.raised and self._is_empty(self.stand.last):
                self._note(f"it refuses empty tensors: {f.message.partition(': ')[2]}")
                return NotApplicable("it refuses empty tensors, which says so at least")
            cls: Class = "crash" if self.stand.raised else trials.CLASSES[name]
            if f.message.startswith("a result is not initialised"):
                cls, f = "nondeterministic", self._told_apart(f)
            return Wrong(cls, f, f.call or self.stand.last, self._shown_by(name, cls))
        except Charge as c:
            if c.cls == "timeout" and case.variant == "vast":
                self._note(f"so many elements were not tried as {sizes.VAST}: {c.message}")
                return NotApplicable("it is slow, which is no mistake")
            return Wrong(cast(Class, c.cls), Finding(c.message), self.stand.last, self._shown_by(name, c.cls))
        return None

    def _told_apart(self, finding: Finding) -> Finding:
        """Results that differ with what memory held, or in any case: the guard alone cannot tell."""
        if self.stand.last is None:
            return finding
        with self.stand.filling(*[bounds.FILLS[0]] * 2), bounds.one_thread():
            given = [self.stand.call(copied(self.stand.last)).results for _ in range(AGAIN)]
        if all(differs(given[0], other) is None for other in given[1:]):
            return finding
        text = f"the same call gives another result each time ({finding.expected} or {finding.got})"
        return _reworded(finding, text)

    @staticmethod
    def _shown_by(name: str, cls: str) -> str:
        return "" if name in ("forward", "special") and cls in ("wrong values", "crash", "timeout") else name

    @staticmethod
    def _is_empty(sample: Sample | None) -> bool:
        values = () if sample is None else (*sample.args, *sample.kwargs.values())
        return any(t.numel() == 0 for v in values for t in tensors(v))

    def _tell_of_the_unwatched(self) -> None:
        if self.stand.unwatched is not None and "memory" in self._wanted:
            self._note(f"what is written beside its results was not looked for: {self.stand.unwatched}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # --- what kind of mistake it is ---------------------------------------------------------------------------------

    def _settled(self, name: str, case: Case, wrong: Wrong) -> Wrong:
        """A wrong result is out of bounds where the guard says so, and otherwise what it is as the first call of a
        process: right there, or sometimes, or always wrong."""
        asked = name in ("forward", "special", "state") and wrong.cls in ("wrong values", "cheats", "crash")
        if not asked or wrong.sample is None:
            return wrong
        if wrong.cls == "crash":  # perhaps of what it has written over
            self.stand.renew()
            return (None if self.stand.raised else self._outside(case, wrong.sample)) or wrong
        plain, zeros = wrong.sample, name == "special" and case.extra.startswith("zero")
        try:
            oracle = Oracle(reference_of(self.task.op), copied(plain), self.task.seed)
            alone = [self._alone(oracle, plain, zeros) for _ in range(AGAIN)]
            again = attempt(self.task.op, copied(plain))  # in the process of the last: others draw the same numbers
        except (Charge, Exception):
            return wrong
        right = [r for r, _ in alone]
        if name == "state":
            return wrong if any(right) else Wrong("wrong values", wrong.finding, plain)
        outside = self._outside(case, plain)
        if outside is not None:
            return outside
        if all(right):
            text = f"after other calls, {wrong.finding.message}; as the first call of a process it is right"
            cls: Class = "race" if self.stand.device == "cuda" and self._hurries(oracle, plain) else "cheats"
            return Wrong(cls, _reworded(wrong.finding, text), plain, "state" if cls == "cheats" else "")
        same = all(differs(alone[0][1], other) is None for _, other in alone[1:])
        if any(right) or not same:
            text = f"it gives another result in each process: {wrong.finding.message}"
            return Wrong(self._race(oracle, plain, zeros), _reworded(wrong.finding, text), plain, "")
        if differs(alone[-1][1], again) is not None:
            text = f"the same call gives another result each time: {wrong.finding.message}"
            return Wrong("nondeterministic", _reworded(wrong.finding, text), plain, "determinism")
        return wrong

    def _alone(self, oracle: Oracle, sample: Sample, zeros: bool) -> tuple[bool, Results]:
        self.stand.renew()
        got = attempt(self.task.op, copied(sample))
        try:
            oracle.judge(got)
            if zeros and oracle.pointwise and not oracle.selects:
                same_signs(oracle, got)
        except Finding:
            return False, got
        return True, got

    def _race(self, oracle: Oracle, sample: Sample, zeros: bool) -> Class:
        """Whether one thread alone gives the right result each time."""
        with bounds.one_thread():
            return "race" if all(self._alone(oracle, sample, zeros)[0] for _ in range(AGAIN)) else "nondeterministic"

    def _hurries(self, oracle: Oracle, sample: Sample) -> bool:
        """Whether the same call again goes wrong on a GPU, unless each kernel is waited for."""

        def right(waits: bool) -> bool:
            self.stand.renew()
            self.stand.waits = waits
            try:
                for _ in range(AGAIN):
                    oracle.judge(attempt(self.task.op, copied(sample)))
            except (Charge, Exception):
                return False
            finally:
                self.stand.renew()
                self.stand.waits = False
            return True

        return not right(waits=False) and right(waits=True)

    def _outside(self, case: Case, sample: Sample) -> Wrong | None:
        if trials.skip(self.task, "memory", None) is not None:
            return None
        found = self._with(case, sample, "memory")
        return found if found is not None and found.cls in ("out of bounds", "nondeterministic") else None

    # --- the smallest call ------------------------------------------------------------------------------------------

    def _with(self, case: Case, sample: Sample, name: str) -> Wrong | None:
        """What is wrong in a case whose arguments are these, if anything is."""
        task, plain = self.task, replace(case, extra="")
        if name == "state" and not case.extra:  # found by a property that asks for one call
            plain = Case(case.sample, case.dtype)
            case = replace(plain, extra="values")
        try:
            self.task = replace(task, fixed=(plain, sample))
            found = self._attempt(name, case if name != "memory" else plain)
        finally:
            self.task = task
        return found if isinstance(found, Wrong) else None

    def _single(self, case: Case, sample: Sample, strict: bool) -> Wrong | None:
        """What is wrong with one call, if anything is; of special values also the signs of zeros."""
        try:
            self.stand.raised = False
            oracle = accepted(lambda: Oracle(reference_of(self.task.op), copied(sample), self.task.seed))
            if strict:
                in_range(oracle, replace(case, values="plain"))
            got = attempt(self.task.op, copied(sample))
            oracle.judge(got)
            if not strict and oracle.pointwise and not oracle.selects and case.extra.startswith("zero"):
                same_signs(oracle, got)
        except NotApplicable:
            return None
        except Finding as f:
            return Wrong("crash" if self.stand.raised else "wrong values", f, sample)
        except Charge as c:
            return Wrong(cast(Class, c.cls), Finding(c.message), sample)
        return None

    def _charge(self, result: Result, case: Case | None, wrong: Wrong) -> None:
        """Make the call smaller, and say what is left of it."""
        message, tries, sample, finding = wrong.finding.message, 0, wrong.sample, wrong.finding
        if case is not None:
            sample = self._drawn(case) if wrong.by == result.property or sample is None else sample
            search = None if sample is None else self._smaller(case, wrong, sample, result.property == "forward")
            if search is not None:
                sample, tries = search.best, search.tries
                if search.found is not wrong and wrong.cls not in ("timeout", "cheats"):
                    finding = search.found.finding
                    message = finding.message
        changed = [] if case is None else self.task.changes(case)
        if changed:
            kept, flags = ", ".join(changed), " ".join(f"--keep {k}" for k in changed)
            self._note(f"the samples have other {kept}: where the candidate promises no others, keep them ({flags})")
        self.verdict = self._pronounced(result, case, wrong.cls, message, finding, sample)
        self.verdict.tries = tries
        self._fail(result, case, self.verdict)

    def _smaller(self, case: Case, wrong: Wrong, sample: Sample, strict: bool) -> Shrink | None:
        """The search for a smaller call with the same mistake; None where this one does not show it each time."""
        kind = None

        def fails(smaller: Sample) -> Wrong | None:
            found = self._with(case, smaller, wrong.by) if wrong.by else self._single(case, smaller, strict)
            changing = not wrong.by and wrong.cls in ("nondeterministic", "race")
            if found is None or (found.cls != wrong.cls and not (changing and found.cls == "wrong values")):
                return None
            return found if kind in (None, _kind(found.finding)) else None

        patience, self.stand.timeout = self.stand.timeout, min(self.stand.timeout, PATIENCE)
        try:
            first = fails(sample)
            if first is None:
                return None
            kind = _kind(first.finding)
            search = Shrink(sample, fails, wrong)
            search.run()
            return search
        finally:
            self.stand.timeout = patience

    def _drawn(self, case: Case) -> Sample | None:
        try:
            return self.task.draw(replace(case, extra=""))
        except Exception:
            return None

    def _pronounced(
        self, result: Result, case: Case | None, cls: Class, message: str, finding: Finding, sample: Sample | None
    ) -> Verdict:
        parameters = self.task.op.signature.parameters
        names, positions = [p.name for p in parameters], sum(not p.keyword_only for p in parameters)
        known = case is not None and sample is not None
        told = ["--only", result.property, "--case", case.id, "--seed", str(self.task.seed)] if case is not None else []
        replay = " ".join([self.replay, *told, *self.flags])
        if not self.replay and case is not None:
            arguments = f'only=["{result.property}"], case="{case.id}", seed={self.task.seed}{self.options}'
            replay = f"ow.check({self.name}, like={self.task.name}, samples=…, {arguments})"
        return Verdict(
            cls=cls, message=message, property=result.property, case="" if case is None else case.id,
            call=written_out(self.name, names, positions, sample) if known and sample is not None else "",
            arguments=described(names, sample) if sample is not None else [],
            index=finding.index, expected=finding.expected, got=finding.got, replay=replay, sample=sample,
        )  # fmt: skip

    def _fail(self, result: Result, case: Case | None, verdict: Verdict) -> None:
        said = "" if verdict.sample is None else describe(self.task.op, verdict.sample)
        where = ("", "", "none") if case is None else (spell(case.dtype), case.layout, f"{case.drawn}: {said}")
        result.failures.append(
            Failure(
                result.property, self.name, *where, f"{verdict.cls}: {verdict.message}", verdict.index,
                verdict.expected, verdict.got, verdict.replay,
            )
        )  # fmt: skip
        if result not in self.results:
            self.results.append(result)


def _reworded(finding: Finding, message: str) -> Finding:
    return Finding(message, index=finding.index, expected=finding.expected, got=finding.got, shape=finding.shape)


def _kind(finding: Finding) -> str:
    """What a finding says, without where and how much: a smaller call must not fail for another reason."""
    return re.split(r" in |: ", NUMBERS.sub("0", finding.message))[0]
