"""Operators whose CUDA kernels are wrong on purpose. The check on a GPU must reject every one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import opwright as ow
from tests.broken_ops import Broken

FOLDER = Path(__file__).parent / "kernels"


@cache
def load() -> Any:
    """The operators."""
    return ow.load(FOLDER)


def _broken(name: str, by: str, says: str, mistake: str) -> Broken:
    return Broken("cuda", name, by, says, mistake)


BROKEN_ON_CUDA = [
    _broken("no_stream", "streams", "not all of it runs on the current stream", "launches on the default stream"),
    _broken("own_stream", "streams", "not all of it runs on the current stream", "launches on a stream of its own"),
    _broken("waits", "capture", "cannot be captured in a CUDA graph", "waits for the GPU in the middle"),
    _broken("missing_sync", "sanitizer", "racecheck", "a sum over a block without the barrier between its steps"),
    _broken("shared_race", "sanitizer", "racecheck", "threads exchange values through shared memory without a barrier"),
    _broken(
        "divergent_barrier", "sanitizer", "didn't terminate", "a warp's barrier with a mask that lacks its callers"
    ),
    _broken("int_overflow", "large", "is wrong from element", "numbers elements by 32-bit integers"),
    _broken("no_bounds_check", "bands", "bytes past the end of", "the last block writes past the end"),
    _broken("reads_past_end", "bands", "outside the arguments is read", "the last block reads past the end"),
    _broken("unwritten", "bands", "not initialised", "leaves elements as they were allocated"),
    _broken("half_sums", "forward", "wrong in", "adds up half numbers in half"),
    _broken("unchecked_launch", "forward", "wrong in", "more threads than a block may have, and nobody looks"),
    _broken("misaligned_vector", "forward", "misaligned address", "reads 16 bytes at once from any address"),
    _broken("whole_blocks", "forward", "wrong in", "right for multiples of the block's size"),
    _broken("grid_too_large", "forward", "wrong in", "a block a row in blockIdx.y, which ends at 65535"),
    _broken("block_order", "determinism", "gave other values", "adds in the order in which blocks happen to run"),
    _broken("kept_sum", "state", "of several calls", "a sum in global memory that is not cleared between calls"),
    _broken("result_on_cpu", "fake", "is on cpu", "gives its result on another device"),
    _broken("device_zero", "devices", "cuda:", "takes the first GPU for every tensor's"),
]
