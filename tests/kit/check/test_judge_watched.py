"""The process of its own in which a candidate's memory is watched, where that takes one: on a GPU. Here the CPU does as
if it were one, since its allocator can watch in any process."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import guard
from opwright.kit.check.judge import child, stand
from tests.kit.check import candidates

HERE = candidates.__name__
PLAIN = "0.float32.plain"
BOTH = ["forward", "memory"]
"""The first is answered in the usual process, which is then the first one."""


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand, "APART", ("cpu", "cuda"))


def judged(candidate: Any, **options: Any) -> Any:
    return ow.check(candidate, like=candidates.plain_double, samples=candidates.ROWS, **{"only": ["memory"], **options})


def counting(tmp_path: Path, elsewhere: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A candidate that notes the processes it is called in, and behaves otherwise in all but the first."""
    folder = str(tmp_path)

    def twice(x: Tensor) -> Tensor:
        known = os.path.join(folder, "first")
        if not os.path.exists(known):
            with open(known, "w") as file:
                file.write(str(os.getpid()))
        with open(known) as file:
            here = file.read() == str(os.getpid())
        open(os.path.join(folder, f"pid{os.getpid()}"), "w").close()
        return x * 2 if here else elsewhere(x)

    return twice


def processes(tmp_path: Path) -> int:
    return len(list(tmp_path.glob("pid*")))


def test_one_process_watches_in_all_cases_and_another_answers_everything_else(tmp_path: Path) -> None:
    candidate = counting(tmp_path, lambda x: x * 2)
    report = judged(candidate, only=["forward"], keep=["sizes", "layouts", "values"])
    assert report.passed, report
    assert processes(tmp_path) == 1
    report = judged(candidate, only=BOTH, keep=["values"])
    assert report.passed, report
    assert next(r.cases for r in report.results if r.property == "memory") > 3
    assert processes(tmp_path) == 3
    assert report.notes == []


@pytest.mark.parametrize("name", ["past_result", "past_argument", "uninitialised"])
def test_what_is_wrong_with_memory_is_found_there(name: str) -> None:
    verdict = judged(f"{HERE}:{name}", timeout=2.0).verdict
    assert verdict.cls == ("nondeterministic" if name == "uninitialised" else "out of bounds")
    assert "its result" in verdict.message or name != "past_result"


def raises(x: Tensor) -> Tensor:
    raise RuntimeError("not in such memory")


def ends(x: Tensor) -> Tensor:
    os._exit(7)


@pytest.mark.parametrize(
    ("elsewhere", "cause"),
    [(raises, "it raised RuntimeError: not in such memory"), (ends, "it ended its process with status 7")],
)
def test_who_cannot_live_there_is_no_worse_for_it(elsewhere: Any, cause: str, tmp_path: Path) -> None:
    report = judged(counting(tmp_path, elsewhere), only=BOTH, keep=["values", "sizes"])
    assert report.passed, report
    assert report.notes == [f"what is written beside its results was not looked for: {cause}"]
    assert processes(tmp_path) == 2  # it was tried once, and left alone


def test_who_hangs_there_is_given_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(x: Tensor) -> Tensor:
        time.sleep(60)
        return x

    monkeypatch.setattr(stand, "SLOW", 2.0)
    report = judged(counting(tmp_path, hangs), only=BOTH, case=PLAIN, timeout=1.0)
    assert report.passed, report
    assert "it did not return within 2 s" in report.notes[0]


def test_without_the_process_what_was_found_before_still_is(tmp_path: Path) -> None:
    def zeroing(x: Tensor) -> Tensor:
        y = here(x)
        if x.is_contiguous() and x.shape == (4, 7):
            ctypes.memset(x.untyped_storage().data_ptr() + x.untyped_storage().nbytes(), 0, 4)
        return y

    here = counting(tmp_path, raises)
    report = judged(zeroing, only=BOTH, case=PLAIN)
    assert report.verdict.cls == "out of bounds"
    assert "past the end of its argument x" in report.verdict.message
    assert "not in such memory" in report.notes[0]


def test_a_mistake_that_both_processes_see_is_the_candidates() -> None:
    report = judged(raises, case=PLAIN)
    assert report.verdict.cls == "crash"
    assert report.notes == []


def test_where_no_guard_can_be_built_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "missing", lambda device: f"no compiler for the {device}")
    report = judged(candidates.by_numpy, case=PLAIN)
    assert report.passed
    assert report.notes == ["what is written beside its results was not looked for: no compiler for the cpu"]


def test_a_process_that_cannot_watch_says_so_before_it_loads_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(child, "arrive", loaded.append)
    monkeypatch.setattr(guard, "on_cuda", lambda: "memory was allocated already")
    request = {"load": {}, "arena": "", "out": "", "device": "cuda", "memory": 1, "waits": False, "watched": True}
    told = child.answer({**request, "ticket": "t"}, lambda **said: None)
    assert told == {"unwatched": "memory was allocated already", "ticket": "t"}
    assert loaded == []


def test_the_allocator_is_asked_for_before_anything_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the limit of memory is its own: PyTorch's limits its caching allocator alone."""
    done: list[Any] = []

    def arrive(way: Any) -> Any:
        done.append("candidate")
        return abs

    class Watching(guard.CudaGuard):
        def __init__(self) -> None:
            done.append("guard")

        def limit(self, size: int) -> None:
            done.append(size)

    def forbidden(*given: Any) -> None:
        raise AssertionError("it opens the GPU")

    monkeypatch.setattr(guard, "on_cuda", Watching)
    monkeypatch.setattr(child, "arrive", arrive)
    monkeypatch.setattr(torch.cuda, "get_device_properties", forbidden)
    seat = child.Seat()
    seat.load({"load": {}, "arena": "", "out": "", "device": "cuda:0", "memory": 9, "waits": False, "watched": True})
    assert done == ["guard", 9, "candidate"]


def test_a_result_is_told_by_where_it_was_before_it_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seat, made = child.Seat(), torch.ones(3)
    seat._function = lambda: (made[1:], None, made.to_sparse())
    seat._call((), {}, [], False)
    assert seat._places == [made.untyped_storage().data_ptr(), 0, 0]
