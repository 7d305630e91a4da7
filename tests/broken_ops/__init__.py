"""Operators that are wrong on purpose: a folder a theme, each operator with one mistake that real kernels have.

The check must reject every one, by the property and with the sentence that stand here. The table in the
documentation is made from this list too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import opwright as ow

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Broken:
    """An operator with a mistake, and what must catch it."""

    theme: str
    name: str
    property: str
    says: str
    """A part of the sentence in which the check says so."""
    mistake: str

    @property
    def op(self) -> ow.Op[..., Any]:
        """The operator itself; its folder is loaded when first asked for."""
        found: ow.Op[..., Any] = getattr(load(self.theme), self.name)
        return found


@cache
def load(theme: str) -> Any:
    """The operators of a theme."""
    return ow.load(FOLDER / theme)


BROKEN = [
    Broken("tails", "tail_dropped", "forward", "wrong in", "the loop over a vector's remainder begins one late"),
    Broken(
        "tails",
        "full_block_masked",
        "forward",
        "wrong in",
        "the last vector's mask is empty where the length is a multiple of its width",
    ),
    Broken("tails", "row_tails", "forward", "wrong in", "the remainder is computed in the last row only"),
    Broken(
        "tails",
        "stale_lanes",
        "forward",
        "wrong in",
        "the vector with the remainder still holds lanes of the one before",
    ),
    Broken("tails", "reads_past_end", "memory", "", "reads one element past the end of an input"),
    Broken("strides", "stride_ignored", "forward", "wrong in", "reads a strided tensor as if it were contiguous"),
    Broken("strides", "inner_stride_ignored", "forward", "wrong in", "takes the last dimension's stride to be 1"),
    Broken("strides", "offset_ignored", "forward", "wrong in", "ignores where in its memory a tensor begins"),
    Broken("strides", "channels_last_ignored", "forward", "wrong in", "takes channels_last memory for row-major"),
    Broken("strides", "misaligned", "forward", "wrong in", "right only for aligned addresses"),
    Broken("strides", "broadcast_modulo", "forward", "wrong in", "broadcasts leading dimensions only"),
    Broken("strides", "output_strides", "fake", "strides", "the result's strides are not those of the fake kernel"),
    Broken("strides", "expanded_gradient", "gradients", "wrong in", "reads an expanded incoming gradient as dense"),
    Broken("sizes", "empty_mean", "forward", "wrong in", "wrong where a size is 0"),
    Broken("sizes", "single_element", "forward", "wrong in", "wrong where a size is 1"),
    Broken("sizes", "far_stride", "forward", "wrong in", "offsets beyond 2³¹ do not fit its integers"),
    Broken("sizes", "short_count", "forward", "wrong in", "the number of elements does not fit its integers"),
    Broken("sizes", "rank_zero", "forward", "shape", "gives a scalar a dimension"),
    Broken("sizes", "deep_rank", "forward", "wrong in", "knows four dimensions only"),
    Broken("sizes", "empty_crash", "forward", "", "reads the first element of an empty tensor and crashes"),
    Broken("memory", "writes_past_input", "memory", "", "writes past the end of an input"),
    Broken("memory", "writes_past_output", "memory", "", "writes past the end of a result that kernel.h allocated"),
    Broken("memory", "writes_past_aten_output", "memory", "", "writes past the end of a result that PyTorch allocated"),
    Broken("memory", "writes_input", "memory", "", "writes to an input"),
    Broken("memory", "alias_input", "fake", "shares memory", "returns an input itself"),
    Broken("memory", "uninitialised", "memory", "", "leaves elements of its result unwritten"),
    Broken("memory", "accumulates_into_empty", "memory", "", "adds to memory that it did not clear"),
    Broken("memory", "stale_cache", "state", "", "keeps a result from an earlier call"),
    Broken("memory", "keeps_input", "leak", "", "keeps an input alive"),
    Broken("memory", "leaks", "leak", "", "allocates at each call and frees nothing"),
    Broken("threads", "race_total", "order", "", "threads add to one total without asking each other"),
    Broken("threads", "race_edge", "order", "", "a thread writes its neighbour's element"),
    Broken("threads", "carry_lost", "order", "", "right only where one thread does all the work"),
    Broken("threads", "thread_slots", "order", "", "right only for the number of threads at its first call"),
    Broken("threads", "two_threads_only", "threads", "", "wrong for more than two threads"),
    Broken("threads", "shared_scratch", "threads", "", "callers on several threads share a buffer"),
    Broken("threads", "changing_order", "determinism", "", "the order of additions changes from call to call"),
    Broken("threads", "draws", "state", "", "draws from the global random number generator"),
    Broken("threads", "rounding_left", "state", "", "leaves the processor's rounding mode changed"),
    Broken("threads", "threads_left", "state", "", "leaves PyTorch's number of threads changed"),
    Broken("precision", "float_sum", "forward", "wrong in", "a float holds the sum of doubles"),
    Broken("precision", "bfloat_sum", "forward", "wrong in", "wrong for bfloat16 only: rounds at each addition"),
    Broken("precision", "int_sum", "forward", "wrong in", "a sum that is promised as int64 is kept in int32"),
    Broken("precision", "cancelling_variance", "forward", "wrong in", "subtracts large numbers that nearly cancel"),
    Broken("precision", "quick_exp", "forward", "wrong in", "an approximation good for three digits"),
    Broken("precision", "half_overflow", "forward", "wrong in", "an intermediate result overflows in float16"),
    Broken(
        "precision", "doubles_as_floats", "forward", "wrong in", "its domain claims a dtype that its loop does not read"
    ),
    Broken("precision", "number_narrowed", "forward", "wrong in", "rounds a number to float for doubles"),
    Broken("precision", "wider_result", "fake", "float32", "the result has another dtype in bfloat16"),
    Broken("precision", "unstable_sort", "forward", "wrong in", "of equal elements it takes another first"),
    Broken("precision", "truncated_division", "forward", "wrong in", "integer division rounds the other way"),
    Broken("precision", "swallowed_nan", "special", "", "NaN becomes a number"),
    Broken("precision", "infinite_ratio", "special", "", "infinity becomes NaN"),
    Broken("precision", "lost_sign", "special", "sign of zero", "-0 becomes 0"),
    Broken("precision", "flushed", "special", "", "subnormal numbers become 0"),
    Broken("gradients", "one_input_wrong", "gradients", "wrong in", "the gradient of one of two inputs is wrong"),
    Broken("gradients", "second_wrong", "gradients", "wrong in", "the first derivative is right and the second wrong"),
    Broken("gradients", "detached_formula", "gradcheck", "", "the gradient's formula loses the second derivative"),
    Broken("gradients", "broadcast_unreduced", "gradients", "shape", "the gradient of a broadcast input is not summed"),
    Broken(
        "gradients",
        "broadcast_summed_wrong",
        "gradients",
        "wrong in",
        "the gradient of a broadcast input is summed along the wrong dimension",
    ),
    Broken(
        "gradients",
        "number_gradient",
        "gradients",
        "one for each differentiable input",
        "gives a gradient for a number",
    ),
    Broken("gradients", "index_gradient", "undefined", "", "gives a gradient for integers"),
    Broken("gradients", "unwanted_computed", "undefined", "nobody wanted it", "computes a gradient that nobody wants"),
    Broken(
        "gradients",
        "undefined_as_zeros",
        "undefined",
        "undefined incoming gradient",
        "takes an undefined gradient for zeros of the wrong shape",
    ),
    Broken(
        "gradients",
        "undefined_refused",
        "undefined",
        "undefined incoming gradient",
        "fails where an incoming gradient is undefined",
    ),
    Broken("gradients", "edge_gradient", "gradients", "wrong in", "another slope where there are two"),
    Broken("gradients", "wider_gradient", "fake", "float32", "the gradient has another dtype in bfloat16"),
    Broken("gradients", "conjugate_forgotten", "gradients", "wrong in", "wrong for complex numbers only: no conjugate"),
    Broken("gradients", "infinite_slope", "gradients", "wrong in", "an infinite slope becomes 0"),
    Broken("gradients", "gradient_overwrites", "memory", "", "the gradient overwrites the incoming one"),
    Broken("registration", "batched_wrong", "vmap", "", "the batching rule mixes the batch"),
    Broken("registration", "autocast_dtype", "autocast", "", "another dtype under autocast"),
    Broken("registration", "fake_shape", "fake", "shape", "the fake kernel promises another shape"),
    Broken("registration", "kernel_shape", "forward", "shape", "the kernel keeps a dimension that the reference drops"),
    Broken("registration", "dtype_changed", "forward", "float32", "the kernel changes the dtype"),
    Broken("registration", "reads_a_value", "compile", "", "reads a value, which no graph can"),
    Broken("registration", "unmarked_", "memory", "", "writes in place without telling autograd"),
    Broken("registration", "compiled_otherwise", "compile", "", "computes something else when compiled"),
    Broken("registration", "graph_lost", "gradients", "", "records nothing for autograd"),
    Broken("registration", "list_short", "forward", "wrong in", "leaves out the last tensor of a list"),
    Broken("registration", "option_ignored", "forward", "wrong in", "ignores an optional tensor"),
    Broken("rejecting", "rejects_valid", "forward", "multiple of 4", "rejects a valid input"),
    Broken("rejecting", "accepts_invalid", "rejects", "", "accepts an invalid input"),
    Broken("rejecting", "wild_index", "rejects", "", "an index out of range crashes it"),
    Broken("rejecting", "wrong_error", "rejects", "", "rejects with another error than the reference"),
    Broken("rejecting", "zero_division", "rejects", "", "an integer division by zero crashes it"),
    Broken("rejecting", "mixed_dtypes", "forward", "wrong in", "reads mixed dtypes as one"),
]
