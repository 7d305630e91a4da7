"""The judge's side of the candidate's processes: calls it, with limits of time and memory, and survives it."""

from __future__ import annotations

import base64
import contextlib
import io
import math
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import first_line
from opwright.kit.check.guard import BadWrite, NoGuard
from opwright.kit.check.judge.arena import Arena, Shared, Spot, dtype_of, view
from opwright.kit.check.judge.named import Missing, Way
from opwright.kit.check.judge.process import Charge, Process
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Results

APART = ("cuda",)
"""Kinds of devices whose memory is watched from a process's first tensor on or never, so that it takes one of its own:
much does not work in such memory, and all of it is slow."""
SLOW = 20.0
"""Seconds that a call may take there, at least."""
FULL = ("can't allocate memory", "bad_alloc", "out of memory", "Cannot allocate memory")


class Own(BaseException):
    """An error of the judge itself, which is not to be taken for one of the candidate's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Raised(Exception):
    """The candidate raised an error; made under the name that it had."""


@dataclass
class Answer:
    """What came of a call: its results, whether autograd recorded them, which argument each of them is, and in whose
    memory it lies; -1: in none's."""

    results: Results
    recorded: list[bool] = field(default_factory=list)
    aliases: list[int] = field(default_factory=list)
    within: list[int] = field(default_factory=list)
    form: Any = None
    """How the results are nested."""
    changed: list[str] = field(default_factory=list)
    """What the call has left otherwise of what all callers share, where that was asked."""


@dataclass(frozen=True)
class Packed:
    """A call on its way: the arguments without their tensors, and those."""

    arguments: str
    tensors: list[Tensor]


class Stand:
    """A candidate in a process of its own, started when it is first called and again when it has died. On a GPU it has
    a second one for calls whose memory is watched."""

    device = "cpu"
    """Where the guard of memory watches, in the words of bounds.py."""

    def __init__(self, way: Way, on: str, timeout: float, memory: int) -> None:
        self._on, self.timeout, self.memory = on, timeout, memory
        self.device = torch.device(on).type
        self._arena = Arena()
        self._out = Shared()
        about: dict[str, Any] = {
            "load": way,
            "arena": self._arena.path,
            "out": self._out.path,
            "device": on,
            "memory": memory,
        }
        self._plain = self._asked = Process(**about)
        self._watched = Process(watched=True, **about) if self.device in APART else None
        self._fill: tuple[int, int] | None = None
        self._found: list[BadWrite] = []
        self.unwatched: str | None = None
        """Why what is written beside results is not looked for, where it is not."""
        self.raised = False
        """Whether the last call ended with an error."""
        self.last: Sample | None = None
        """The arguments of the last call."""
        self.waits = False
        """Whether a new process waits for each kernel that it starts on a GPU."""

    def close(self) -> None:
        """End its processes."""
        self.renew()
        if self._watched is not None:
            self._watched.end()
        self._arena.close()
        self._out.close()

    def renew(self) -> None:
        """The next call is the first of a new process. One in which memory is watched goes on: what is found there is
        wrong after any other call."""
        self._plain.end()

    def load(self) -> None:
        """Let the process import the candidate."""
        self._plain.load(self.timeout, waits=self.waits)

    def leave_unwatched(self, why: str) -> None:
        """Watch over no memory but the arguments' from now on, where there is a process that watches over more."""
        if self._watched is not None:
            self._watched.end()
            self._watched, self.unwatched = None, why

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(
        self, sample: Sample, *, written: Sequence[Tensor] = (), recorded: bool = False, hold: bool = False
    ) -> Answer:
        """One call. What it may write to is written to here as well."""
        return self._call([sample], written=written, recorded=recorded, hold=hold)[0]

    def repeat(self, sample: Sample, times: int, seconds: float, written: Sequence[Tensor] = ()) -> list[Results]:
        """The results of one call after the other, as many as fit into some seconds; and what it has written to, which
        is as it was before each call."""
        return [a.results for a in self._call([sample], written=written, times=times, seconds=seconds)]

    def together(self, samples: Sequence[Sample], times: int, written: Sequence[Tensor] = ()) -> list[list[Results]]:
        """The results of several callers at once, of each those of its calls, likewise."""
        found = [a.results for a in self._call(samples, written=written, times=times, together=True)]
        return [found[i * times : (i + 1) * times] for i in range(len(samples))]

    def changes(self, sample: Sample, written: Sequence[Tensor] = ()) -> list[str]:
        """What a call leaves otherwise of the things that all callers in its process share."""
        return self._call([sample], written=written, look=True)[0].changed

    def held(self) -> Results:
        """What the last call that was to be held has given, as it is now."""
        return self._told(self._asked.ask(self.timeout, again=True, threads=torch.get_num_threads()))[0].results

    def spoil(self, which: Sequence[int], value: float) -> None:
        """Write to some of the results of the last call that was to be held, as their owner may."""
        self._asked.ask(self.timeout, spoil=list(which), value=value, threads=torch.get_num_threads())

    def backward(self, incoming: Sequence[Tensor]) -> Results:
        """The gradients of the last recorded call."""
        spots = self._arena.put(incoming, after=self._arena.end)  # the graph still refers to the arguments
        room, threads = self._arena.room, torch.get_num_threads()
        before = self._arena.bytes[: self._arena.end].clone()
        answer = self._asked.ask(self.timeout, backward=spots, room=room, threads=threads)
        found = self._told(answer)[0].results
        for spot in spots:
            mine = slice(spot.begin, spot.begin + spot.size)
            if not torch.equal(before[mine], self._arena.bytes[mine]):
                raise Charge("out of bounds", "its backward writes to the gradient that comes in")
        return found

    def _call(self, samples: Sequence[Sample], **how: Any) -> list[Answer]:
        if self._fill is None or self._watched is None:
            return self._called(self._plain, samples, **how)
        try:
            return self._called(self._watched, samples, **how)
        except (Charge, Raised, NoGuard, Missing) as e:
            # What is not written for such memory is no mistake. What is one shows in the usual process as well.
            answers = self._called(self._plain, samples, **how)
            self.leave_unwatched(_cause(e))
            return answers

    def _called(
        self,
        process: Process,
        samples: Sequence[Sample],
        *,
        written: Sequence[Tensor] = (),
        recorded: bool = False,
        hold: bool = False,
        times: int = 1,
        seconds: float = 0.0,
        together: bool = False,
        look: bool = False,
    ) -> list[Answer]:
        process.load(self.timeout, waits=self.waits and not process.watched)
        self.last, self._asked = samples[0], process
        packed = [_pack(sample) for sample in samples]
        tensors = [t for p in packed for t in p.tensors]
        around = 0 if self._fill is None else self._fill[1]
        spots = self._arena.put(tensors, around)
        calls, at = [], 0
        for p in packed:
            leaves = [recorded and t.requires_grad for t in p.tensors]
            mine = spots[at : at + len(leaves)]
            at += len(leaves)
            theirs = [i for i, t in enumerate(p.tensors) if any(t is w for w in written)]
            calls.append({"arguments": p.arguments, "spots": mine, "leaves": leaves, "written": theirs})
        before = self._arena.bytes[: self._arena.end].clone()
        timeout = max(self.timeout, SLOW) if process.watched else self.timeout
        answer = process.ask(
            timeout + seconds, calls=calls, room=self._arena.room, times=times, limit=seconds, hold=hold,
            together=together, look=look, threads=torch.get_num_threads(), fill=self._fill,
        )  # fmt: skip
        answers = self._told(answer)
        self._write_back(tensors, spots, written)
        if self._fill is not None:
            self._look(tensors, spots, answers[0].results, answer)
        else:
            self._refuse_changed(before, tensors, spots, written)
        return answers

    def _refuse_changed(
        self, before: Tensor, tensors: Sequence[Tensor], spots: Sequence[Spot], written: Sequence[Tensor]
    ) -> None:
        """Arguments are as they were, after any call: some are written to for some values alone."""
        for i, (t, spot) in enumerate(zip(tensors, spots, strict=True)):
            mine = slice(spot.begin, spot.begin + spot.size)
            if not any(t is w for w in written) and not torch.equal(before[mine], self._arena.bytes[mine]):
                raise Charge("out of bounds", f"it writes to its argument{'' if len(tensors) == 1 else f' {i}'}")

    def _write_back(self, tensors: Sequence[Tensor], spots: Sequence[Spot], written: Sequence[Tensor]) -> None:
        for t, spot in zip(tensors, spots, strict=True):
            if spot.size == 0 or spot.stride != list(t.stride()):
                continue
            if self._fill is not None:  # all of its memory, since all of it is looked at
                # As bytes: what lies between Booleans need not be one, and would become one.
                there = self._arena.bytes[spot.begin : spot.begin + spot.size]
                first = (t.storage_offset() - spot.offset) * t.element_size()
                here = torch.empty(0, dtype=torch.uint8, device=t.device)
                here.set_(t.untyped_storage(), first, (spot.size,), (1,)).copy_(there)
            elif any(t is w for w in written):
                with torch.no_grad():
                    t.copy_(view(spot, self._arena.bytes))

    # --- what is watched --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def filling(self, inside: int, around: int) -> Iterator[None]:
        """Calls run in memory that began as bytes `inside`; around the arguments lie bytes `around`."""
        self._fill, self._found = (inside, around), []
        try:
            yield
        finally:
            self._fill = None

    def outside(self) -> list[BadWrite]:
        """Where the last call wrote outside of tensors, in the words of what they are here."""
        return self._found

    def _look(self, tensors: Sequence[Tensor], spots: Sequence[Spot], results: Results, answer: dict[str, Any]) -> None:
        assert self._fill is not None
        band = self._arena.outside(spots, self._fill[1])
        if band is not None:
            which, at = band
            self._found.append(BadWrite(tensors[which].untyped_storage().data_ptr(), spots[which].size, at))
        for which, size, at in answer["outside"]:
            r = results[which] if 0 <= which < len(results) else None
            self._found.append(BadWrite(0 if r is None else r.untyped_storage().data_ptr(), int(size), int(at)))

    # --- questions and answers --------------------------------------------------------------------------------------

    def _told(self, answer: dict[str, Any]) -> list[Answer]:
        """The results of an answer; what the candidate raised is raised here."""
        self.raised = "raised" in answer
        if self.raised:
            kind, message = map(str, answer["raised"])
            if kind in ("MemoryError", "OutOfMemoryError") or any(word in message for word in FULL):
                most = f"{self.memory / 2**30:.3g} GiB"
                raise Charge("crash", f"it asked for more than {most} of memory: {kind}: {message[:200]}")
            if "CUDA error" in message or "CUDA driver error" in message:
                self._asked.end()
                raise Charge("crash", f"the GPU stopped: {first_line(Exception(message))}")
            raise type(kind, (Raised,), {})(message)
        try:
            with open(self._out.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                found = [[self._read(file, size, told) for told in results] for results in answer["results"]]
            recorded = [bool(r) for r in answer["recorded"]]
            aliases, within = [int(i) for i in answer["aliases"]], [int(i) for i in answer["within"]]
            changed = [str(what)[:80] for what in answer["changed"]]
            return [Answer(results, recorded, aliases, within, answer["form"], changed) for results in found]
        except (ValueError, TypeError, KeyError, RuntimeError, OverflowError):
            self._asked.end()
            raise Charge("cheats", "its process handed out results that are none") from None

    def _read(self, file: Any, most: int, told: dict[str, Any] | None) -> Tensor | None:
        if told is None:
            return None
        if "what" in told:
            raise Charge("wrong values", f"it gives a {str(told['what'])[:80]}, where the reference gives a tensor")
        if "type" in told:
            raise Charge("cheats", f"it gives a {str(told['type'])[:80]}, which may compute when it is looked at")
        dtype, shape = dtype_of(told["dtype"]), [int(s) for s in told["shape"]]
        size, at = math.prod(shape) * dtype.itemsize, int(told["at"])
        if min([0, at, *shape]) < 0 or at + size > most:
            raise ValueError("no such bytes")
        if size == 0:
            return torch.empty(shape, dtype=dtype, device=self._on)
        file.seek(at)
        return torch.frombuffer(bytearray(file.read(size)), dtype=dtype).reshape(shape).to(self._on)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        for i, known in enumerate(self.tensors):
            if known is value:
                return i
        self.tensors.append(value)
        return len(self.tensors) - 1


def _pack(sample: Sample) -> Packed:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump((sample.args, sample.kwargs))
    return Packed(base64.b64encode(file.getvalue()).decode(), pickler.tensors)


def _cause(e: BaseException) -> str:
    """Why a call did not go well where memory is watched."""
    if isinstance(e, Charge):
        return e.message
    return f"it raised {type(e).__name__}: {first_line(e)}" if isinstance(e, Raised) else first_line(e)
