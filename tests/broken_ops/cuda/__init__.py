"""Operators whose CUDA kernels are wrong on purpose. The check on a GPU must reject every one."""

from __future__ import annotations

from pathlib import Path

from tests.broken_ops import Broken

FOLDERS = [Path(__file__).parent / name for name in ("kernels", "adversaries")]


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
    _broken("unsigned_count", "large", "is wrong from element", "numbers elements by unsigned 32-bit integers"),
    _broken("index_in_float", "large", "is wrong from element", "numbers elements by floats, which skip some"),
    _broken("count_in_float", "large", "is wrong from element", "counts elements in a float, which ends at 2²⁴"),
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
    _broken("shared_buffer", "streams", "callers on several streams at once", "a buffer that all streams share"),
    _broken("joined_by_luck", "streams", "on the current stream", "a stream that nobody waits for at the end"),
    _broken("half_elsewhere", "streams", "on the current stream", "half of the work on a stream that does not wait"),
    _broken("kept_by_address", "state", "of several calls", "results kept by an address"),
    _broken("kept_by_shape", "state", "of several calls", "results kept by a shape"),
    _broken("kept_by_first_values", "state", "of several calls", "results kept by the first and last values"),
    _broken("right_at_first", "state", "of many calls", "right in the first thousand calls"),
    _broken("same_output", "state", "overwritten by a later call", "the same memory for every result"),
    _broken("cleared_once", "state", "of several calls", "a sum that only the first call clears"),
    _broken("first_maximum", "forward", "the result", "softmax with the maximum of the first 1024 elements"),
    _broken("no_maximum_at_all", "forward", "where the reference is finite", "softmax without a maximum"),
    _broken("small_alone", "forward", "the result", "right for three million elements"),
    _broken("near_zero_alone", "forward", "wrong in", "a tangent in place of a parabola, far from zero"),
    _broken("one_warp", "forward", "wrong in", "a sum over the first 32 elements of a row"),
    _broken("one_length", "forward", "wrong in", "wrong for one length"),
    _broken("last_remains", "forward", "wrong in", "of addends for one place the last remains"),
    _broken("zeros_left_out", "special", "wrong in", "a block of zeros is taken for nothing to do"),
    _broken("nan_dropped", "special", "where the reference is nan", "a maximum that drops NaN"),
    _broken("by_its_reference", "work", "calls the operator's own reference", "a kernel that calls its reference"),
    _broken("device_zero", "devices", "cuda:", "takes the first GPU for every tensor's"),
]
