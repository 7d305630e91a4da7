"""The candidate's process: it runs the candidate on what lies in the arena, and hands out what came of it as bytes.

Nothing is judged here, and nothing that judges is known here: neither the reference nor a seed nor what is tried next.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import io
import os
import pickle
import resource
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check import guard, shared
from opwright.kit.check.judge.arena import Spot, lies_in, mapped, view
from opwright.kit.check.judge.named import Missing, arrive
from opwright.kit.workers.child import Say

PLAIN = (Tensor, torch.nn.Parameter)
MOST_BYTES = 64 << 20
"""Of the results of repeated calls."""


def answer(request: dict[str, Any], say: Say) -> dict[str, Any]:
    """Load the candidate, call it, ask for gradients of the last call, or hand out once more what it gave."""
    try:
        return {**(_seat.load(request) if "load" in request else _seat.answer(request)), "ticket": request["ticket"]}
    except Missing as e:
        return {"missing": str(e), "ticket": request["ticket"]}
    except guard.NoGuard as e:
        return {"unwatched": str(e), "ticket": request["ticket"]}
    except BaseException as e:  # also one that would end the process: it is the candidate's
        return {"raised": [type(e).__name__, str(e)[:2000]], "ticket": request["ticket"]}


class Seat:
    """Where the candidate sits: its function, the arena, and what is kept between requests."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)
        self._room = 0
        self._recorded: tuple[list[Tensor], list[Any]] = ([], [])
        self._held: list[Any] = []
        self._aliases: list[int] = []
        self._within: list[int] = []
        self._form: Any = None
        self._places: list[int] = []
        self._guard: guard.Guard | None = None

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Watch over memory, set limits and import the candidate, last of all: what it then changes here concerns
        itself alone."""
        self._path, self._out, self._device = request["arena"], request["out"], request["device"]
        self._guard = _guard(self._device, request["watched"])
        self._view, self._arguments = view, _Arguments
        if request["waits"]:
            os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        if self._device == "cpu":
            _limit(request["memory"])
        elif isinstance(self._guard, guard.CudaGuard):
            self._guard.limit(request["memory"])
        else:
            index = torch.device(self._device).index or 0  # torch 2.11 takes no device without one here
            total = torch.cuda.get_device_properties(index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, request["memory"] / total), index)
        self._function = arrive(request["load"])
        if not callable(self._function):
            raise Missing(f"the candidate must be a function, got {repr(self._function)[:200]}")
        return {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["threads"] != torch.get_num_threads():
            torch.set_num_threads(request["threads"])
        outside: list[list[int]] = []
        self._changed: list[str] = []
        if "again" in request:
            given = [self._held]
        elif "spoil" in request:
            given = [[]]
            for t in (self._held[i] for i in request["spoil"]):
                if isinstance(t, Tensor) and t.layout == torch.strided and (0 not in t.stride() or t.numel() < 2):
                    t.detach().fill_(request["value"])
        elif "backward" in request:
            given = [self._backward(self._laid(request["room"], request["backward"]))]
        else:
            given, outside = self._called(request)
        with open(self._out, "wb") as file:
            told = [[_write(r, file) for r in results] for results in given]
        recorded = [r.requires_grad for r in self._recorded[0]]
        where = {"aliases": self._aliases, "within": self._within, "form": self._form}
        return {"results": told, "outside": outside, "recorded": recorded, "changed": self._changed, **where}

    def _called(self, request: dict[str, Any]) -> tuple[list[list[Any]], list[list[int]]]:
        spots = [s for call in request["calls"] for s in call["spots"]]
        laid = self._laid(request["room"], spots)
        calls, at = [], 0
        for call in request["calls"]:
            mine = laid[at : at + len(call["spots"])]
            at += len(mine)
            leaves = [t.requires_grad_() for t, leaf in zip(mine, call["leaves"], strict=True) if leaf]
            written = [mine[i] for i in call["written"]]
            calls.append((self._arguments(call["arguments"], mine).load(), mine, leaves, written))
        if request["together"]:
            return self._together(calls, request["times"]), []
        (args, kwargs), mine, leaves, written = calls[0]
        originals = [t.clone() for t in written]
        found: list[list[Any]] = []
        outside: list[list[int]] = []
        with self._filled(request["fill"]) as watching:
            end, most = time.monotonic() + request["limit"], request["times"]
            while not found or (len(found) < most and time.monotonic() < end):
                if found:
                    _restore(written, originals)
                if request["look"]:
                    results = self._looked_at(args, kwargs, mine)
                else:
                    results = self._call(args, kwargs, mine, bool(leaves))
                if request["hold"]:
                    self._held = results
                found.append(results if most == 1 else _kept(results, written))
                if most > 1 and len(found) == 1:
                    size = sum(r.nbytes for r in found[0] if isinstance(r, Tensor))
                    most = min(most, 1 + MOST_BYTES // max(size, 1))
            if leaves:
                self._recorded = [r for r in results if isinstance(r, Tensor)], leaves
            if watching is not None:
                outside = [[b.address, b.size, b.offset] for b in watching.outside()]
        self._hand_back(request["room"])
        # Results have been copied by now, and what is told is where they were.
        places = [self._places.index(at) if at in self._places else -1 for at, _, _ in outside]
        return found, [[which, size, offset] for which, (_, size, offset) in zip(places, outside, strict=True)]

    def _call(self, args: Any, kwargs: Any, mine: list[Tensor], recorded: bool) -> list[Any]:
        with torch.enable_grad() if recorded else torch.no_grad():
            out = self._function(*args, **kwargs)
        results, self._form = flat(out), form(out)
        self._aliases = [next((i for i, t in enumerate(mine) if _is_same(r, t)), -1) for r in results]
        self._within = [next((i for i, t in enumerate(mine) if lies_in(r, t)), -1) for r in results]
        self._places = [_place(r) for r in results]
        # On the stream that a caller would go on with: who computed on another must have waited for it.
        return [r.clone() if isinstance(r, Tensor) and r.is_cuda and not recorded else r for r in results]

    def _looked_at(self, args: Any, kwargs: Any, mine: list[Tensor]) -> list[Any]:
        """A call, and what of the things that all callers share it leaves otherwise."""
        with shared.settled():
            before = shared.look()
            results = self._call(args, kwargs, mine, False)
            self._changed = shared.changed(before, shared.look())
        return results

    def _together(self, calls: list[Any], times: int) -> list[list[Any]]:
        """Threads that call at once, each with arguments of its own."""
        given: list[list[Any]] = [[] for _ in range(len(calls) * times)]
        errors: list[BaseException] = []
        barrier = threading.Barrier(len(calls))

        def work(which: int) -> None:
            (args, kwargs), mine, _, written = calls[which]
            originals = [t.clone() for t in written]
            barrier.wait()
            try:
                for k in range(times):
                    _restore(written, originals)
                    results = self._call(args, kwargs, mine, False)
                    given[which * times + k] = _kept(results, written) if written else results
            except BaseException as e:
                errors.append(e)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if errors:
            raise errors[0]
        return given

    def _backward(self, incoming: list[Tensor]) -> list[Any]:
        outputs, leaves = self._recorded
        pairs = [(o, g) for o, g in zip(outputs, incoming, strict=True) if o.requires_grad]
        found = torch.autograd.grad(
            [o for o, _ in pairs], leaves, [g for _, g in pairs], retain_graph=True, allow_unused=True
        )
        return list(found)

    @contextlib.contextmanager
    def _filled(self, fill: list[int] | None) -> Iterator[guard.Guard | None]:
        if fill is None or self._guard is None:
            yield None
            return
        with self._guard.filling(*fill):
            yield self._guard

    def _laid(self, room: int, spots: list[Any]) -> list[Tensor]:
        if room != self._room:
            self._memory, self._room = mapped(self._path, room), room
            if self._device != "cpu":
                self._there = torch.empty(room, dtype=torch.uint8, device=self._device)
        places = [Spot(*s) for s in spots]
        if self._device == "cpu":
            return [self._view(s._replace(begin=0), self._memory_of(s)) for s in places]
        end = max((s.begin + s.size for s in places), default=0) + 8192
        self._end = min(end, room)
        self._there[: self._end].copy_(self._memory[: self._end])
        return [self._view(s, self._there) for s in places]

    def _memory_of(self, spot: Spot) -> Tensor:
        """The bytes of a spot as a storage of its own, as an allocator's would be."""
        if spot.size == 0:
            return torch.empty(0, dtype=torch.uint8)
        part = (ctypes.c_uint8 * spot.size).from_address(self._memory.data_ptr() + spot.begin)
        return torch.frombuffer(part, dtype=torch.uint8)

    def _hand_back(self, room: int) -> None:
        """What lies on a device now, to where the judge sees it."""
        if self._device != "cpu":
            self._memory[: self._end].copy_(self._there[: self._end])


class _Arguments(pickle.Unpickler):
    """The arguments of a call, their tensors taken from where they lie."""

    def __init__(self, packed: str, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(base64.b64decode(packed)))
        self._tensors = tensors

    def persistent_load(self, which: Any) -> Tensor:
        return self._tensors[int(which)]


def flat(out: Any) -> list[Any]:
    """What a function gives, one after the other; numbers as tensors."""
    if isinstance(out, (list, tuple)):
        return [r for o in out for r in flat(o)]
    if isinstance(out, dict):
        return [r for key in sorted(out, key=str) for r in flat(out[key])]
    return [torch.tensor(out)] if isinstance(out, (bool, int, float, complex)) else [out]


def form(out: Any) -> Any:
    """How results are nested, in values that JSON holds; lists and tuples are alike."""
    if isinstance(out, (list, tuple)):
        return [form(o) for o in out]
    if isinstance(out, dict):
        return {str(key): form(out[key]) for key in sorted(out, key=str)}
    if isinstance(out, (bool, int, float, complex)):
        return "a number"
    return "None" if out is None else "a tensor"


def _is_same(r: Any, t: Tensor) -> bool:
    alike = isinstance(r, Tensor) and r.layout == torch.strided and r.shape == t.shape and t.numel() > 0
    return r is t or bool(alike and r.data_ptr() == t.data_ptr())


def _restore(written: list[Tensor], originals: list[Tensor]) -> None:
    """What a call has written to, as it was before."""
    for t, original in zip(written, originals, strict=True):
        t.copy_(original)


def _kept(results: list[Any], written: list[Tensor]) -> list[Any]:
    """The results of a call in memory of their own, then what it wrote to."""
    if not written:
        return [_own(r) for r in results]
    apart = [r for r in results if r is not None and not any(_is_same(r, t) for t in written)]
    return [*map(_own, apart), *map(_own, written)]


def _own(r: Any) -> Any:
    return r.detach().clone() if isinstance(r, Tensor) else r


def _place(r: Any) -> int:
    """The address of the block of memory that a result lies in; 0: it has none, or says none."""
    try:
        return int(r.untyped_storage().data_ptr()) if isinstance(r, Tensor) and r.layout == torch.strided else 0
    except RuntimeError:
        return 0


def _write(r: Any, file: Any) -> dict[str, Any] | None:
    """What is told of a result, its bytes written to a file."""
    if r is None:
        return None
    if not isinstance(r, Tensor) or r.layout != torch.strided or r.is_quantized:
        return {"what": type(r).__name__ if not isinstance(r, Tensor) else f"{r.layout} tensor"}
    plain = type(r) in PLAIN
    t = r.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    size = t.numel() * t.element_size()
    told = {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "at": file.tell(), "size": size}
    file.write(ctypes.string_at(t.data_ptr(), size) if size else b"")
    return told if plain else {**told, "type": type(r).__name__}


def _guard(device: str, watched: bool) -> guard.Guard | None:
    """What watches over memory here. On a GPU that is nothing where it was not asked for: there it cannot be put to
    rest, and its process can do less."""
    if not watched and device != "cpu":
        return None
    found = guard.on_cpu() if device == "cpu" else guard.on_cuda()
    if isinstance(found, guard.Guard):
        return found
    if watched:
        raise guard.NoGuard(found)
    return None


def _limit(memory: int) -> None:
    """No more than so many bytes beyond what the process has now. What is only reserved does not count."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii") as file:
        held = next(int(line.split()[1]) for line in file if line.startswith("VmData")) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (held + memory, held + memory))


_seat = Seat()
