"""Functions that are held against others by test_judge.py: right ones, and one for each class of a verdict.

They are found by their names, as those of a user are.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opwright as ow

ROWS = [(torch.linspace(-3, 3, 28).reshape(4, 7),)]
PAIRS = [(torch.linspace(-1, 1, 15).reshape(3, 5), torch.linspace(0, 2, 15).reshape(3, 5))]


INDEXED = [(torch.tensor([[0, 2], [3, 1]]), torch.linspace(-1, 1, 20).reshape(5, 4))]


def cases(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 7)


def plain_softmax(x):  # type: ignore[no-untyped-def]  # as functions are that nobody annotated
    return torch.softmax(x, -1)


def plain_double(x: Tensor) -> Tensor:
    return x * 2


def plain_twice_(x: Tensor) -> None:
    x.mul_(2)


# --- right ----------------------------------------------------------------------------------------------------------


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2)


def in_place(x: Tensor) -> Tensor:
    return x.add_(x)


def plain_gather(index: Tensor, table: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, table)


def reordered(index: Tensor, table: Tensor) -> Tensor:
    return table.index_select(0, index.reshape(-1)).reshape(*index.shape, table.shape[1])


def compiled(x: Tensor) -> Tensor:
    global _compiled
    _compiled = _compiled or torch.compile(plain_softmax)
    return _compiled(x)  # type: ignore[no-any-return]


_compiled: Any = None


def refuses_empty(x: Tensor) -> Tensor:
    assert x.numel(), "it is empty"
    return x * 2


builtin = torch.add
"""A function of C's, which has no signature."""


# --- wrong ----------------------------------------------------------------------------------------------------------


def without_maximum(x: Tensor) -> Tensor:
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 3


def wrong_gradient(x: Tensor) -> Tensor:
    return _WrongBackward.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def past_argument(x: Tensor) -> Tensor:
    y = x * 2
    if x.numel():
        ctypes.memset(x.untyped_storage().data_ptr() + x.untyped_storage().nbytes(), 0, 4)
    return y


def past_result(x: Tensor) -> Tensor:
    y = x * 2
    if y.numel():
        ctypes.memset(y.data_ptr() + y.numel() * y.element_size(), 0, 4)
    return y


def reads_past_end(x: Tensor) -> Tensor:
    y = x * 2
    if x.numel() and x.is_contiguous() and x.dtype == torch.float32:
        after = ctypes.c_float.from_address(x.data_ptr() + 4 * x.numel()).value
        y += torch.tensor(after).nan_to_num(1.0).clamp(0, 1) if after == after else 1.0
        y -= 1.0 if after != after else 0.0
    return y


def writes_argument(x: Tensor) -> Tensor:
    y = x * 2
    x.zero_()
    return y


def uninitialised(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    if y.dim():
        y[1:] = x[1:] * 2
        y[:1] = torch.where(y[:1] == y[:1], y[:1], x[:1] * 2)
    else:
        y.copy_(x * 2)
    return y


_scratch: dict[torch.Size, Tensor] = {}


def shared_scratch(x: Tensor) -> Tensor:
    room = _scratch.setdefault(x.shape, torch.empty(x.shape, dtype=x.dtype))
    room.copy_(x)
    if threading.active_count() > 1:
        time.sleep(0.002)
    return room * 2


_calls = itertools.count()


def nondeterministic(x: Tensor) -> Tensor:
    return x * 2 * (1 + 1e-7 * (next(_calls) % 2))


def random(x: Tensor) -> Tensor:
    return x * 2 + torch.rand(())


_kept: dict[Any, Tensor] = {}


def by_address(x: Tensor) -> Tensor:
    return _kept.setdefault((x.data_ptr(), x.shape, x.stride()), x * 2).clone()


def by_shape(x: Tensor) -> Tensor:
    if x.shape != (4, 7):
        return x * 2
    return _kept.setdefault((x.shape, x.dtype), x * 2).clone()


def by_count(x: Tensor) -> Tensor:
    return x * 2 if next(_calls) < 900 else x.clone()


def handed_out_again(x: Tensor) -> Tensor:
    room = _kept.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype))
    return room.copy_(x * 2)


class Lazy(Tensor):
    pass


def lazy(x: Tensor) -> Tensor:
    return (x * 2).as_subclass(Lazy)


def segfault(x: Tensor) -> Tensor:
    if x.numel() >= 20:
        ctypes.string_at(0)
    return x * 2


def exits(x: Tensor) -> Tensor:
    os._exit(0)


def raises(x: Tensor) -> Tensor:
    if x.dim() and x.shape[0] > 2:
        raise RuntimeError("too long")
    return x * 2


def loops(x: Tensor) -> Tensor:
    while x.numel() > 3:
        time.sleep(0.05)
    return x * 2


def greedy(x: Tensor) -> Tensor:
    return x * 2 + torch.zeros(1 << 30)[:1].sum()


def patches(x: Tensor) -> Tensor:
    """Wrong, and all that could say so in this process is made to say that it is not."""
    from opwright.kit.check import bounds, guard
    from opwright.kit.check.judge import court, trials
    from opwright.kit.truth import oracle, tolerance

    for module, name in ((torch, "equal"), (torch, "allclose"), (torch.testing, "assert_close")):
        setattr(module, name, lambda *a, **k: True)
    for kind, name in ((oracle.Oracle, "judge"), (guard.Guard, "outside"), (court.Court, "_attempt")):
        setattr(kind, name, lambda *a, **k: None)
    bounds.check = lambda *a, **k: None
    trials.check = lambda *a, **k: None
    tolerance.within = lambda value, *a, **k: torch.ones_like(value, dtype=torch.bool)
    return x * 2 + 1


def forges(x: Tensor) -> Tensor:
    """Writes an answer to whatever is open, as if the call were done."""
    for fd in range(3, 64):
        try:
            os.write(fd, b'{"end": true, "results": [[null]], "outside": [], "recorded": [], "aliases": []}\n')
        except OSError:
            continue
    return x


def prints_an_answer(x: Tensor) -> Tensor:
    print('{"end": true, "results": []}', flush=True)
    return x


def long_rows(x: Tensor) -> Tensor:
    return x * 2 if x.dim() == 0 or x.shape[-1] < 100 else x * 2 + 1


def looks_around(x: Tensor) -> Tensor:
    """Right, unless somebody lets slip what it must not know."""
    with open("/proc/self/cmdline", "rb") as file:
        told = [file.read().decode(), *os.environ.values(), *sys.argv]
    assert not any("123457" in text for text in told), "the seed"
    assert "tests.kit.check.test_judge" not in sys.modules, "the reference"
    assert not any(type(o).__name__ == "Oracle" for o in gc.get_objects()), "the oracle"
    return x * 2


unfit = 3


def starts_another(x: Tensor) -> Tensor:
    subprocess.Popen(["sleep", "77.125"])
    return x * 2


def leaves_another_behind(x: Tensor) -> Tensor:
    if os.fork() == 0:
        time.sleep(60)
    os._exit(3)


def tidies_up(x: Tensor) -> Tensor:
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = Path(line.split()[-1])
        if file.name.startswith("opwright-") and file.parent == Path(tempfile.gettempdir()):
            file.unlink(missing_ok=True)
    return x * 2


# --- wrong in a gradient, or in what a call leaves --------------------------------------------------------------------


def plain_square(x: Tensor) -> Tensor:
    return x * x


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.clamp(-4, 4) * 2 * ctx.saved_tensors[0]  # type: ignore[no-any-return]


def clips_gradients(x: Tensor) -> Tensor:
    return _Clipped.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.slope = 2 * x
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return ctx.slope.mul_(grad)  # type: ignore[no-any-return]


def spends_its_gradient(x: Tensor) -> Tensor:
    return _Spent.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Overwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.mul_(2 * ctx.saved_tensors[0])


def overwrites_incoming(x: Tensor) -> Tensor:
    return _Overwrites.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        return grad * y, grad * x if ctx.needs_input_grad[0] else grad


def frozen_neighbour(x: Tensor, y: Tensor) -> Tensor:
    return _Frozen.apply(x, y)  # type: ignore[no-any-return, no-untyped-call]


def reseeds(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x * 2


def sets_dtype(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return x * 2


def writes_and_counts(x: Tensor) -> None:
    x.mul_(2 if next(_written) < 500 else 3)


_written = itertools.count()


def keeps_indices(index: Tensor, table: Tensor) -> Tensor:
    kept = _indices.setdefault((index.data_ptr(), index.shape), index.clone())
    return table[kept] if not kept.numel() or int(kept.max()) < len(table) else table[index]


_indices: dict[Any, Tensor] = {}
