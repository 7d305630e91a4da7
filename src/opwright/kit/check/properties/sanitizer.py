"""On a GPU, under compute-sanitizer: no stray access, no race, nothing read before it is written, no barrier missed.

Each tool watches a worker of its own (watched.py) that runs the cases of all rungs, with PyTorch's caching allocator
out of the way, so that an access beyond a tensor is one beyond an allocation.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import torch

from opwright.kit.build import cuda
from opwright.kit.build.trouble import Unavailable
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.constants import written_in
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.op import Op
from opwright.kit.workers.travel import ticket
from opwright.kit.workers.worker import Died, Worker, spawning

PROPERTY = Property(turn=250, device="cuda", once=True, asked="sanitize")

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
WATCHED = "opwright.kit.check.watched"
PATIENCE = 250
"""Seconds for one tool."""
FOREIGN = re.compile(r"\bat::|\bcub::|\bcutlass|\bcublas|\bthrust::|gemm|gemv|splitK|nvjet|xmma|\bcudnn|c10::")
"""Kernels of PyTorch and CUDA's libraries: what they do is not ours to judge."""

ADAPTED = "OPWRIGHT_RACECHECK"
"""Defined where racecheck watches, for kernels that name it: a barrier at which some arrive and do not wait is one that
racecheck does not follow, and there all may wait."""

_running: dict[str, Worker] = {}


def program() -> str | None:
    """Where compute-sanitizer lies."""
    found = shutil.which("compute-sanitizer")
    if found is not None:
        return found
    try:
        home = cuda.nvcc().home
    except Unavailable:
        return None
    places = [home / "bin" / "compute-sanitizer", home / "compute-sanitizer" / "compute-sanitizer"]
    return next((str(p) for p in places if p.is_file()), None)


def skip(subject: Subject) -> str | None:
    if torch.device(subject.device).type != "cuda":
        return "it watches over GPUs"
    if subject.op.home is not subject.op:
        return f"it is watched together with {subject.op.home.name}"
    if not any(k.device == "cuda" for rung in subject.op.ladder for k in rung.kernels):
        return "no kernel runs here"
    if program() is None:
        return "there is no compute-sanitizer; it comes with the CUDA toolkit"
    return None


def cases(subject: Subject) -> Iterator[Case]:
    try:
        yield from (Case(0, subject.main, extra=tool) for tool in TOOLS)
    finally:
        while _running:  # where a failure ended the property
            _running.popitem()[1].stop()


def check(subject: Subject, case: Case) -> None:
    if case.extra == TOOLS[0]:
        for tool in TOOLS:  # all at once: each is one slow thread
            _running[tool] = _start(subject, tool)
    with _running.pop(case.extra, None) or _start(subject, case.extra) as worker:
        done, said = _heard(worker, case.extra)
    found = errors(said)
    if found:
        raise Finding(f"{case.extra}: {found[0]}" + (f" (and {len(found) - 1} more)" if len(found) > 1 else ""))
    if not done:
        raise Finding(f"{case.extra}: the program under it ended early and said: {_last_words(said)}")


def _start(subject: Subject, tool: str) -> Worker:
    command = [program() or "compute-sanitizer", "--tool", tool, "--print-limit", "20"]
    if tool == "memcheck":
        command += ["--report-api-errors", "no"]  # PyTorch asks for what there may not be, and expects a no
    if tool == "racecheck":
        command += ["--racecheck-report", "analysis"]
    torch.cuda.empty_cache()  # the tool and its program want memory too
    settings = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if tool == "racecheck" and _adapts(subject.op):
        settings["OPWRIGHT_NVCCFLAGS"] = f"{os.environ.get('OPWRIGHT_NVCCFLAGS', '')} -D{ADAPTED}".strip()
    worker = Worker(spawning(WATCHED, settings, command))
    worker.ask(define=ticket(subject.op))
    worker.ask(home=subject.op.qualname, seed=subject.seed, device=subject.device)
    return worker


def _adapts(op: Op[..., Any]) -> bool:
    """Whether a kernel of an operator has lines of its own for racecheck."""
    libraries = [k.library for rung in op.ladder for k in rung.kernels if k.device == "cuda" and k.library is not None]
    return any(ADAPTED.encode() in file.read_bytes() for library in libraries for file in written_in(library))


def _heard(worker: Worker, tool: str) -> tuple[bool, str]:
    """Whether the program under a tool ran to its end, and all that both printed."""
    end = time.monotonic() + PATIENCE
    try:
        while not {"calls", "error"} & (answer := worker.listen(end - time.monotonic())).keys():
            pass
        said = worker.finish(end - time.monotonic())
        return "calls" in answer, said + (f"\n{answer['error']}: {answer['message']}" if "error" in answer else "")
    except Died as e:
        if e.code is None:
            raise Finding(f"{tool} did not end within {PATIENCE} s") from None
        return False, e.said


def _last_words(said: str) -> str:
    """The last line of the program itself, or else of the tool."""
    lines = [line for line in said.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("=========")]
    return (own or lines or ["nothing"])[-1][:200]


def errors(said: str) -> list[str]:
    """The sanitizer's findings about kernels that are not PyTorch's own, one line each.

    >>> errors("========= Invalid __global__ write of size 4 bytes\\n=========     at broken(float *)+0x70")
    ['Invalid __global__ write of size 4 bytes at broken(float *)+0x70']
    """
    found: list[str] = []
    block: list[str] = []
    for line in [*said.splitlines(), "========= end"]:
        if not line.startswith("========="):
            continue
        text = line.removeprefix("=========")
        if text.startswith(("     ", "\t")) or not text.strip():
            block.append(text.strip())
            continue
        if block and _is_error(block):
            where = next((b for b in block[1:] if b.startswith(("at ", "Write access by", "Read access by"))), "")
            found.append(f"{block[0]} {re.split(r' in /| by thread', where)[0]}".strip()[:240])
        block = [text.strip()]
    return found


KINDS = ("Invalid", "Uninitialized", "Barrier", "Error:", "Race", "Address", "Potential", "Program hit", "Misaligned")


def _is_error(block: list[str]) -> bool:
    # The frames of the host are PyTorch's for every kernel: its dispatcher called it.
    on_device = [line for line in block if not line.startswith(("Host Frame", "Saved host", "by thread"))]
    return block[0].startswith(KINDS) and not FOREIGN.search(" ".join(on_device))
