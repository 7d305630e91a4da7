"""Operators that are wrong on purpose: a folder a theme, each operator with one mistake that real kernels have.

The check must reject every one, by the property and with the sentence that stand here. The table in the
documentation is made from this list too.
"""

from __future__ import annotations

from tests.broken_ops.mistake import FOLDER, Broken
from tests.broken_ops.unforeseen import UNFORESEEN

__all__ = ["BROKEN", "FOLDER", "Broken"]

BROKEN = [
    Broken(
        "tails",
        "tail_dropped",
        "forward",
        "the result is wrong in",
        "the loop over a vector's remainder begins one late",
    ),
    Broken(
        "tails",
        "full_block_masked",
        "forward",
        "the result is wrong in",
        "the last vector's mask is empty where the length is a multiple of its width",
    ),
    Broken("tails", "row_tails", "forward", "the result is wrong in", "the remainder is computed in the last row only"),
    Broken(
        "tails",
        "stale_lanes",
        "forward",
        "the result is wrong in",
        "the vector with the remainder still holds lanes of the one before",
    ),
    Broken(
        "tails",
        "reads_past_end",
        "memory",
        "memory outside the arguments is read",
        "reads one element past the end of an input",
    ),
    Broken(
        "strides",
        "stride_ignored",
        "forward",
        "the result is wrong in",
        "reads a strided tensor as if it were contiguous",
    ),
    Broken(
        "strides",
        "inner_stride_ignored",
        "forward",
        "the result is wrong in",
        "takes the last dimension's stride to be 1",
    ),
    Broken(
        "strides", "offset_ignored", "forward", "the result is wrong in", "ignores where in its memory a tensor begins"
    ),
    Broken(
        "strides",
        "channels_last_ignored",
        "forward",
        "the result is wrong in",
        "takes channels_last memory for row-major",
    ),
    Broken("strides", "misaligned", "forward", "the result is wrong in", "right only for aligned addresses"),
    Broken("strides", "broadcast_modulo", "forward", "the result is wrong in", "broadcasts leading dimensions only"),
    Broken("strides", "output_strides", "fake", "has strides", "the result's strides are not those of the fake kernel"),
    Broken("strides", "expanded_gradient", "gradients", "the gradient", "reads an expanded incoming gradient as dense"),
    Broken("sizes", "empty_mean", "forward", "0 where the reference is nan", "wrong where a size is 0"),
    Broken("sizes", "single_element", "forward", "the result is wrong in", "wrong where a size is 1"),
    Broken("sizes", "far_stride", "forward", "the result is wrong in", "offsets beyond 2³¹ do not fit its integers"),
    Broken(
        "sizes", "short_count", "forward", "the result is wrong in", "the number of elements does not fit its integers"
    ),
    Broken("sizes", "rank_zero", "forward", "has shape (1,)", "gives a scalar a dimension"),
    Broken("sizes", "deep_rank", "forward", "the result is wrong in", "knows four dimensions only"),
    Broken(
        "sizes",
        "empty_crash",
        "forward",
        "crashed with SIGSEGV",
        "reads the first element of an empty tensor and crashes",
    ),
    Broken(
        "memory", "writes_past_input", "memory", "past the end of its argument x", "writes past the end of an input"
    ),
    Broken(
        "memory",
        "writes_past_output",
        "memory",
        "past the end of its result",
        "writes past the end of a result that kernel.h allocated",
    ),
    Broken(
        "memory",
        "writes_past_aten_output",
        "memory",
        "past the end of its result",
        "writes past the end of a result that PyTorch allocated",
    ),
    Broken("memory", "writes_input", "memory", "it writes to its argument x", "writes to an input"),
    Broken("memory", "alias_input", "fake", "shares memory with the argument x", "returns an input itself"),
    Broken("memory", "uninitialised", "memory", "not initialised", "leaves elements of its result unwritten"),
    Broken("memory", "accumulates_into_empty", "memory", "not initialised", "adds to memory that it did not clear"),
    Broken("memory", "stale_cache", "state", "in the next of several calls", "keeps a result from an earlier call"),
    Broken("memory", "keeps_input", "leak", "of its arguments or results alive", "keeps an input alive"),
    Broken("memory", "leaks", "leak", "memory is not given back", "allocates at each call and frees nothing"),
    Broken("threads", "race_total", "order", "parallel loop", "threads add to one total without asking each other"),
    Broken("threads", "race_edge", "order", "chunks in another order", "a thread writes its neighbour's element"),
    Broken(
        "threads", "carry_lost", "order", "chunks in another order", "right only where one thread does all the work"
    ),
    Broken(
        "threads",
        "thread_slots",
        "order",
        "chunks in another order",
        "right only for the number of threads at its first call",
    ),
    Broken("threads", "two_threads_only", "threads", "with 3 threads", "wrong for more than two threads"),
    Broken(
        "threads",
        "shared_scratch",
        "threads",
        "with several callers at once",
        "callers on several threads share a buffer",
    ),
    Broken(
        "threads",
        "changing_order",
        "determinism",
        "gave other values than the first",
        "the order of additions changes from call to call",
    ),
    Broken("threads", "draws", "state", "random number generator", "draws from the global random number generator"),
    Broken("threads", "rounding_left", "state", "way of rounding", "leaves the processor's rounding mode changed"),
    Broken("threads", "threads_left", "state", "number of threads", "leaves PyTorch's number of threads changed"),
    Broken("precision", "float_sum", "forward", "the result is wrong in", "a float holds the sum of doubles"),
    Broken(
        "precision",
        "bfloat_sum",
        "forward",
        "the result is wrong in",
        "wrong for bfloat16 only: rounds at each addition",
    ),
    Broken(
        "precision", "int_sum", "forward", "the result is wrong in", "a sum that is promised as int64 is kept in int32"
    ),
    Broken(
        "precision",
        "cancelling_variance",
        "forward",
        "the result is wrong in",
        "subtracts large numbers that nearly cancel",
    ),
    Broken("precision", "quick_exp", "forward", "the result is wrong in", "an approximation good for three digits"),
    Broken(
        "precision",
        "half_overflow",
        "forward",
        "inf where the reference is finite",
        "an intermediate result overflows in float16",
    ),
    Broken(
        "precision",
        "doubles_as_floats",
        "forward",
        "the result is wrong in",
        "its domain claims a dtype that its loop does not read",
    ),
    Broken("precision", "number_narrowed", "forward", "the result is wrong in", "rounds a number to float for doubles"),
    Broken(
        "precision",
        "wider_result",
        "fake",
        "the fake kernel promises bfloat16",
        "the result has another dtype in bfloat16",
    ),
    Broken(
        "precision", "unstable_sort", "forward", "the result is wrong in", "of equal elements it takes another first"
    ),
    Broken(
        "precision", "truncated_division", "forward", "the result is wrong in", "integer division rounds the other way"
    ),
    Broken("precision", "swallowed_nan", "special", "0 where the reference is nan", "NaN becomes a number"),
    Broken("precision", "infinite_ratio", "special", "nan where the reference is finite", "infinity becomes NaN"),
    Broken("precision", "lost_sign", "special", "sign of zero", "-0 becomes 0"),
    Broken("precision", "flushed", "special", "wrong in", "subnormal numbers become 0"),
    Broken(
        "gradients",
        "one_input_wrong",
        "gradients",
        "the gradient 1 is wrong",
        "the gradient of one of two inputs is wrong",
    ),
    Broken(
        "gradients",
        "second_wrong",
        "gradients",
        "second derivative",
        "the first derivative is right and the second wrong",
    ),
    Broken(
        "gradients",
        "detached_formula",
        "gradcheck",
        "gradgradcheck fails",
        "the gradient's formula loses the second derivative",
    ),
    Broken(
        "gradients",
        "broadcast_unreduced",
        "gradients",
        "its gradient returned shape",
        "the gradient of a broadcast input is not summed",
    ),
    Broken(
        "gradients",
        "broadcast_summed_wrong",
        "gradients",
        "the gradient",
        "the gradient of a broadcast input is summed along the wrong dimension",
    ),
    Broken(
        "gradients",
        "number_gradient",
        "gradients",
        "one for each differentiable input",
        "gives a gradient for a number",
    ),
    Broken(
        "gradients", "index_gradient", "undefined", "computed though nobody wanted it", "gives a gradient for integers"
    ),
    Broken(
        "gradients",
        "unwanted_computed",
        "undefined",
        "computed though nobody wanted it; let the kernel return `wants(wanted, ",
        "computes a gradient that nobody wants",
    ),
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
    Broken("gradients", "edge_gradient", "gradients", "the gradient", "another slope where there are two"),
    Broken(
        "gradients",
        "wider_gradient",
        "fake",
        "the fake kernel promises bfloat16",
        "the gradient has another dtype in bfloat16",
    ),
    Broken(
        "gradients", "conjugate_forgotten", "gradients", "the gradient", "wrong for complex numbers only: no conjugate"
    ),
    Broken("gradients", "infinite_slope", "gradients", "where the reference is", "an infinite slope becomes 0"),
    Broken(
        "gradients",
        "gradient_overwrites",
        "memory",
        "it writes to its argument grad",
        "the gradient overwrites the incoming one",
    ),
    Broken("registration", "batched_wrong", "vmap", "of row 0 is wrong", "the batching rule mixes the batch"),
    Broken("registration", "leading_wrong", "vmap", "of row 0 is wrong", "declares a batch where it has none"),
    Broken("registration", "autocast_dtype", "autocast", "under autocast is float32", "another dtype under autocast"),
    Broken(
        "registration",
        "fake_shape",
        "fake",
        "the fake kernel promises (3, 1)",
        "the fake kernel promises another shape",
    ),
    Broken(
        "registration",
        "kernel_shape",
        "forward",
        "has shape (3, 1)",
        "the kernel keeps a dimension that the reference drops",
    ),
    Broken(
        "registration",
        "dtype_changed",
        "forward",
        "is float32, the reference gives float64",
        "the kernel changes the dtype",
    ),
    Broken("registration", "reads_a_value", "compile", "reads values of a tensor", "reads a value, which no graph can"),
    Broken(
        "registration",
        "unmarked_",
        "fake",
        "written by declaration and not marked so",
        "writes in place without telling autograd",
    ),
    Broken(
        "registration",
        "compiled_otherwise",
        "compile",
        "the compiled result is wrong",
        "computes something else when compiled",
    ),
    Broken("registration", "graph_lost", "gradients", "the gradient is absent", "records nothing for autograd"),
    Broken("registration", "list_short", "forward", "the result is wrong in", "leaves out the last tensor of a list"),
    Broken("registration", "option_ignored", "forward", "the result is wrong in", "ignores an optional tensor"),
    Broken("rejecting", "rejects_valid", "forward", "multiple of 4 elements", "rejects a valid input"),
    Broken("rejecting", "accepts_invalid", "rejects", "accepts what it must reject", "accepts an invalid input"),
    Broken("rejecting", "wild_index", "rejects", "crashed with SIGSEGV", "an index out of range crashes it"),
    Broken(
        "rejecting", "wrong_error_", "rejects", "where ValueError with", "rejects with another error than the reference"
    ),
    Broken("rejecting", "zero_division", "rejects", "crashed with SIGFPE", "an integer division by zero crashes it"),
    Broken("rejecting", "mixed_dtypes", "forward", "the result is wrong in", "reads mixed dtypes as one"),
    *UNFORESEEN,
]
