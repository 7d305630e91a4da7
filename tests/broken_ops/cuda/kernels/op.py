"""Mistakes that CUDA kernels have."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

SINGLES = ow.Domain(dtypes=(torch.float32,), layout="contiguous")
HALVES = ow.Domain(dtypes=(torch.bfloat16,), layout="contiguous")


def shapes(make: ow.Maker) -> Iterator[Any]:
    for shape in ((5,), (300,), (3, 7)):
        yield make(*shape)


def rows(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 1000, low=0.0)
    yield make(7, 5, low=0.0)


@ow.op(namespace="broken_cuda")
def no_stream(x: Tensor) -> Tensor:
    """x + 1 on the default stream."""
    return x + 1


@ow.op(namespace="broken_cuda")
def own_stream(x: Tensor) -> Tensor:
    """x + 1 on a stream that waits for nobody."""
    return x + 1


@ow.op(namespace="broken_cuda")
def waits(x: Tensor) -> Tensor:
    """x + 1, after which it waits for the GPU."""
    return x + 1


@ow.op(namespace="broken_cuda")
def missing_sync(x: Tensor) -> Tensor:
    """The sum of each row by halving steps in shared memory, without a barrier between them."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(1)


@ow.op(namespace="broken_cuda")
def shared_race(x: Tensor) -> Tensor:
    """x with its stretches of 256 reversed."""
    flat = x.reshape(-1)
    parts = [part.flip(0) for part in flat.split(256)]
    return torch.cat(parts).reshape(x.shape) if parts else x.clone()


@ow.op(namespace="broken_cuda")
def divergent_barrier(x: Tensor) -> Tensor:
    """x + 1; threads wait at a barrier of their warp that is for the others."""
    return x + 1


@ow.op(namespace="broken_cuda")
def int_overflow(x: Tensor) -> Tensor:
    """x + 1 with 32-bit indices."""
    return x + 1


@ow.op(namespace="broken_cuda")
def unsigned_count(x: Tensor) -> Tensor:
    """x + 1 with unsigned 32-bit indices."""
    return x + 1


@ow.op(namespace="broken_cuda")
def index_in_float(x: Tensor) -> Tensor:
    """x + 1 with indices in float."""
    return x + 1


@ow.op(namespace="broken_cuda")
def count_in_float(x: Tensor) -> Tensor:
    """The mean of all elements, which are counted in a float."""
    return x.mean()


@ow.op(namespace="broken_cuda")
def no_bounds_check(x: Tensor) -> Tensor:
    """x + 1, written in stretches of eight."""
    return x + 1


@ow.op(namespace="broken_cuda")
def reads_past_end(x: Tensor) -> Tensor:
    """x with each element's right neighbour added; the last has none, which it forgets."""
    right = torch.cat([x.reshape(-1)[1:], x.new_zeros(min(1, x.numel()))])
    return x + right.reshape(x.shape)


@ow.op(namespace="broken_cuda")
def unwritten(x: Tensor) -> Tensor:
    """relu(x); writes the positive elements only."""
    return x.clamp_min(0)


@ow.op(namespace="broken_cuda")
def half_sums(x: Tensor) -> Tensor:
    """The sum of each row, added up in bfloat16."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(1)


@ow.op(namespace="broken_cuda")
def unchecked_launch(x: Tensor) -> Tensor:
    """x + 1 by blocks of 2048 threads."""
    return x + 1


@ow.op(namespace="broken_cuda")
def misaligned_vector(x: Tensor) -> Tensor:
    """x + 1 in vectors of four."""
    return x + 1


@ow.op(namespace="broken_cuda")
def whole_blocks(x: Tensor) -> Tensor:
    """x + 1 by n / 128 blocks."""
    return x + 1


@ow.op(namespace="broken_cuda")
def grid_too_large(x: Tensor) -> Tensor:
    """x + 1 by a block an element."""
    return x + 1


@ow.op(namespace="broken_cuda")
def block_order(x: Tensor) -> Tensor:
    """The sum of all elements, by atomic additions."""
    return x.sum()


@ow.op(namespace="broken_cuda")
def kept_sum(x: Tensor) -> Tensor:
    """The number of elements, counted in a variable that is cleared once."""
    return torch.full((), float(x.numel()), dtype=x.dtype, device=x.device)


@ow.op(namespace="broken_cuda")
def result_on_cpu(x: Tensor) -> Tensor:
    """x + 1 in the CPU's memory."""
    return x + 1


@ow.op(namespace="broken_cuda")
def device_zero(x: Tensor) -> Tensor:
    """x + 1 in memory of the first GPU."""
    return x + 1


for each in (missing_sync, half_sums):
    each.samples(rows)
for each in (
    no_stream, own_stream, waits, shared_race, divergent_barrier, int_overflow, no_bounds_check, reads_past_end,
    unwritten, unchecked_launch, misaligned_vector, whole_blocks, grid_too_large, block_order, kept_sum, result_on_cpu,
    device_zero, unsigned_count, index_in_float, count_in_float,
):  # fmt: skip
    each.samples(shapes)
for each in (
    no_stream, own_stream, waits, missing_sync, shared_race, divergent_barrier, int_overflow, no_bounds_check,
    reads_past_end, unwritten, unchecked_launch, misaligned_vector, whole_blocks, grid_too_large, block_order, kept_sum,
    result_on_cpu, device_zero, index_in_float, count_in_float,
):  # fmt: skip
    each.kernel_file("cuda.cu", SINGLES)
for each in (half_sums, unsigned_count):
    each.kernel_file("cuda.cu", HALVES)
