"""Launchers of Triton kernels, and others that know a GPU: right ones, and ones that write beside their results.

They are judged by their names, so that only the candidate's process imports them: there is no Triton without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _double(x, out, n, room, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads annotations itself
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0) * 2, mask=at < room)


def _launched(x: Tensor, out: Tensor, room: int) -> Tensor:
    n = x.numel()
    if n:
        _double[(triton.cdiv(n, BLOCK),)](x, out, n, room, BLOCK=BLOCK)
    return out


def right(x: Tensor) -> Tensor:
    x = x.contiguous()
    return _launched(x, torch.empty_like(x), x.numel())


def whole_blocks(x: Tensor) -> Tensor:
    """The mask is at the load alone: zeros are written to the end of the last block."""
    x = x.contiguous()
    return _launched(x, torch.empty_like(x), x.numel() + BLOCK)


def one_past(x: Tensor) -> Tensor:
    """<= where < was meant."""
    x = x.contiguous()
    return _launched(x, torch.empty_like(x), x.numel() + 1)


def past_temporary(x: Tensor) -> Tensor:
    x = x.contiguous()
    return _launched(x, torch.empty_like(x), x.numel() + 1).clone()


def unwritten(x: Tensor) -> Tensor:
    """The last element of a result is what memory held: most often what is right, left there by the call before."""
    x = x.contiguous()
    return _launched(x, torch.empty_like(x), x.numel() - 1)


@triton.autotune(  # type: ignore[untyped-decorator,unused-ignore]
    configs=[triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 1024})], key=[]
)
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _tuned(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def tuned(x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.numel()
    if n:
        _tuned[lambda given: (triton.cdiv(n, given["BLOCK"]),)](x, out, n)
    return out


_graphs: dict[Any, tuple[Any, Tensor, Tensor]] = {}


def captured(x: Tensor) -> Tensor:
    """A graph for each shape, replayed with the values of a call: right, and not possible with an allocator of ours."""
    if x.numel() == 0:
        return x * 2
    key = (x.shape, x.dtype)
    if key not in _graphs:
        given = x.clone(memory_format=torch.contiguous_format)
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            given * 2
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = given * 2
        _graphs[key] = graph, given, made
    graph, given, made = _graphs[key]
    given.copy_(x)
    graph.replay()
    return made.clone()


def _plain(x: Tensor) -> Tensor:
    return x * 2


_compiled: Any = None


def compiled(x: Tensor) -> Tensor:
    global _compiled
    _compiled = _compiled or torch.compile(_plain, dynamic=True)
    return _compiled(x)  # type: ignore[no-any-return]


def by_product(x: Tensor) -> Tensor:
    """cuBLAS, which takes a workspace of its own."""
    with torch.no_grad():
        product = torch.mm(x.reshape(1, -1).t(), x.new_full((1, 1), 2.0)).reshape(x.shape)
        return product.copysign(x)  # a sum of one begins at 0, which takes the sign of -0
