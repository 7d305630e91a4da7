"""The same for inputs that are searched for: those that reach lines and branches which no sample leads to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from opwright.kit.build.trouble import BuildError, Refused, Unavailable
from opwright.kit.check import bounds, guard, instrument
from opwright.kit.check.afford import enough, most_elements
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties import forward, memory
from opwright.kit.check.property import Property
from opwright.kit.check.report import NotApplicable
from opwright.kit.check.search import Search

PROPERTY = Property(turn=230, device="cpu", process="alone", asked="coverage")

SECONDS = 20.0
"""Of the processor's time, that the search of one rung may take where nobody says more."""
PATIENCE = 3
"""How many times that the clock on the wall may show, where others use the machine too."""
MOST_ELEMENTS = 1 << 18

_searches: dict[tuple[str, int], Search] = {}
"""By rung and build: with further seeds a search goes on from where it was."""


def environment() -> dict[str, str]:
    """The environment of a worker whose kernels tell which of their lines ran."""
    return instrument.environment()


def skip(subject: Subject) -> str | None:
    if not any(k.library is not None and k.device == "cpu" for k in subject.op.kernels):
        return "no built kernel runs on the CPU"
    why = instrument.unavailable() or forward.skip(subject)
    if why is not None:
        return why
    try:
        found = _search(subject).told
    except (BuildError, Refused, Unavailable) as e:
        return f"it cannot be built to tell which of its lines ran: {str(e).splitlines()[0]}"
    return None if found else "its kernels tell which of their lines ran in a process of its own alone, if at all"


def _search(subject: Subject) -> Search:
    kernels = [k for k in subject.op.kernels if k.library is not None and k.device == "cpu"]
    for kernel in kernels:
        kernel.ready(subject.op)
    told = instrument.attach(k.library for k in kernels if k.library is not None)
    key = subject.op.qualname, hash(tuple(map(id, told)))
    return _searches.setdefault(key, Search(told))


def cases(subject: Subject) -> Iterator[Case]:
    if subject.case is not None:
        yield Case.read(subject.case)
        return
    may = subject.seconds or SECONDS
    used, end = time.process_time(), time.monotonic() + PATIENCE * may
    for case in _search(subject).cases(subject):
        yield case
        if time.process_time() - used > may or time.monotonic() > end:
            return


def check(subject: Subject, case: Case) -> None:
    search = _search(subject)
    sample = subject.draw(case)
    enough(subject.op, sample, case)
    if most_elements(sample) > MOST_ELEMENTS:
        raise NotApplicable("it is larger than a search can afford")
    accepted(lambda: reference_of(subject.op)(subject.draw(case)))  # what may be written to is drawn again
    search.forget()
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if case.variant == "big" else 1)
    try:
        attempt(subject.op, sample, lenient="=" in case.values)
    finally:
        torch.set_num_threads(threads)
    if not search.notable(case) and subject.case is None:
        raise NotApplicable("it reaches nothing new")
    forward.check(subject, case)
    if memory.skip(subject) is None:
        bounds.check(subject, case, guard.on_cpu())
    search.count()


def found(subject: Subject) -> dict[str, object]:
    """What the search came to: the cases that led somewhere, and by file its lines and those that ran."""
    search = _search(subject)
    lines = {file: told for lib in search.told for file, told in lib.told().items()}
    bound = {b.op for lib in search.told for b in lib.library.bound if b.device == "CPU"}
    return {"cases": [case.id for case in search.kept][-MOST_FOUND:], "lines": lines, "bound": sorted(bound)}


MOST_FOUND = 64
"""Cases that are handed to further seeds."""
