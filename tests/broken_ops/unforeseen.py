"""Mistakes that no sample of their author shows: in values, sizes, indices and options, and kernels that cheat."""

from __future__ import annotations

from tests.broken_ops.mistake import Broken

UNFORESEEN = [
    Broken(
        "values",
        "no_maximum",
        "forward",
        "where the reference is finite",
        "softmax without subtracting the maximum: large numbers overflow",
    ),
    Broken(
        "values",
        "early_maximum",
        "forward",
        "the result is wrong in",
        "softmax with the maximum of a row's first elements only",
    ),
    Broken(
        "values", "wide_maximum", "forward", "the result", "softmax with the maximum of a row's first 1024 elements"
    ),
    Broken("values", "clipped", "forward", "the result is wrong in", "numbers beyond a limit are cut off at it"),
    Broken("values", "tiny_dropped", "forward", "the result is wrong in", "very small numbers are taken for zero"),
    Broken("values", "soft_plus", "forward", "the result is wrong in", "an asymptote is used too early"),
    Broken(
        "values", "one_pass", "forward", "the result is wrong in", "a variance in one pass, which cancels far from zero"
    ),
    Broken(
        "values", "whole_in_doubles", "forward", "the result is wrong in", "64-bit integers on the way through doubles"
    ),
    Broken(
        "values", "whole_in_floats", "forward", "the result is wrong in", "32-bit integers on the way through floats"
    ),
    Broken(
        "values", "half_away", "forward", "the result is wrong in", "ties are rounded away from zero and not to even"
    ),
    Broken("values", "dead_row", "special", "0 where the reference is nan", "a row of -inf becomes zeros"),
    Broken("values", "zero_row", "special", "nan where the reference is finite", "a row of zeros becomes NaN"),
    Broken(
        "values", "low_start", "forward", "the result is wrong in", "a maximum that is searched for from -1000 upwards"
    ),
    Broken(
        "values", "zeros_skipped", "special", "the result is wrong in", "a tensor of zeros is taken for nothing to do"
    ),
    Broken("together", "corner_tile", "forward", "the result is wrong in", "wrong where two sizes are large at once"),
    Broken(
        "together", "whole_tiles", "forward", "the result is wrong in", "wrong where all sizes are multiples of a tile"
    ),
    Broken("together", "taken_for_alike", "forward", "the result is wrong in", "right only where shapes are equal"),
    Broken("together", "small_gradients", "gradients", "the gradient", "large incoming gradients are cut off"),
    Broken("together", "short_sums", "forward", "the result is wrong in", "products of bytes are added up in 16 bits"),
    Broken("together", "narrow_window", "forward", "the result is wrong in", "right for small options only"),
    Broken("together", "nothing_masked", "forward", "the result is wrong in", "wrong where a mask masks nothing"),
    Broken("shapes", "long_rows", "forward", "the result is wrong in", "the last block of a long row is left out"),
    Broken("shapes", "one_length", "forward", "the result is wrong in", "wrong for one particular length"),
    Broken("shapes", "square_unchanged", "forward", "the result is wrong in", "a square matrix is not transposed"),
    Broken("shapes", "four_million", "forward", "is off by", "wrong beyond 2²² elements"),
    Broken("shapes", "powers_of_two", "forward", "the result is wrong in", "wrong for large powers of two"),
    Broken("shapes", "eight_tensors", "forward", "the result is wrong in", "of a list the first eight tensors only"),
    Broken(
        "shapes", "flag_forgotten", "forward", "the result is wrong in", "a flag that no sample sets is not looked at"
    ),
    Broken("shapes", "zero_kept", "forward", "the result is wrong in", "an option of 0 is taken for none given"),
    Broken("shapes", "sign_lost", "forward", "the result is wrong in", "a negative option is taken for its opposite"),
    Broken("indexing", "sorted_only", "forward", "the result is wrong in", "right only where the segments are sorted"),
    Broken(
        "indexing",
        "last_wins",
        "forward",
        "the result is wrong in",
        "of rows for one place the last remains, and is not added",
    ),
    Broken(
        "indexing",
        "negative_as_zero",
        "forward",
        "the result is wrong in",
        "an index that counts from the end is taken for 0",
    ),
    Broken(
        "indexing",
        "wraps_around",
        "rejects",
        "which the reference rejects",
        "an index beyond the end comes round to the beginning",
    ),
    Broken(
        "indexing", "ignored_counted", "forward", "the result is wrong in", "targets to ignore are counted in a mean"
    ),
    Broken("indexing", "empty_bag", "forward", "the result is wrong in", "an empty bag takes a row of the next"),
    Broken(
        "cheats",
        "by_address",
        "state",
        "of several calls",
        "keeps results by the address, first and last values of its input",
    ),
    Broken("cheats", "by_shape", "state", "of several calls", "keeps results by the shape and the sum of its input"),
    Broken("cheats", "by_count", "state", "of many calls", "right in its first thousand calls"),
    Broken("cheats", "now_and_then", "state", "of many calls", "wrong in every 97th call"),
    Broken("cheats", "handed_out_again", "state", "is overwritten by a later call", "hands out the same memory again"),
    Broken(
        "cheats", "by_its_reference", "work", "calls the operator's own reference", "a kernel that is its reference"
    ),
    Broken("cheats", "small_only", "forward", "the result is wrong in", "guesses where there are many elements"),
    Broken("cheats", "near_zero_only", "forward", "the result is wrong in", "right only where the mean is near zero"),
    Broken(
        "reached",
        "on_a_sum",
        "coverage",
        "the result is wrong in",
        "wrong where the sum of all elements lies in a narrow band",
    ),
    Broken(
        "reached",
        "on_a_product",
        "coverage",
        "the result is wrong in",
        "wrong where a product of two elements is far below zero",
    ),
    Broken(
        "reached",
        "on_a_limit",
        "coverage",
        "the result is wrong in",
        "wrong for lengths near a number that a header of the system's names",
    ),
    Broken(
        "reached",
        "on_an_order",
        "coverage",
        "the result is wrong in",
        "wrong where many elements rise, and doubles only",
    ),
    Broken(
        "options", "late_decay", "forward", "the result is wrong in", "an option is taken for 1000 where it is larger"
    ),
    Broken("options", "flags_together", "forward", "the result is wrong in", "wrong where two flags are set"),
    Broken("options", "padding_counts", "forward", "the result is wrong in", "padding that is no -1 counts in a mean"),
    Broken("options", "weights_sorted", "forward", "the result is wrong in", "a list of weights is sorted"),
    Broken(
        "options", "ties_at_one", "forward", "the result is wrong in", "ties are rounded up, which a step of 1 shows"
    ),
    Broken(
        "options", "divides_by_zero", "gradients", "where the reference is finite", "a formula divides by an element"
    ),
    Broken(
        "meeting",
        "third_strides",
        "forward",
        "the result is wrong in",
        "takes a third tensor to lie as the first two do",
    ),
    Broken(
        "meeting",
        "half_a_tile",
        "forward",
        "the result is wrong in",
        "wrong where rows fill their tiles and columns do not",
    ),
    Broken(
        "meeting",
        "last_of_tile",
        "forward",
        "the result is wrong in",
        "softmax that leaves the last element of a short tile out of its maximum",
    ),
    Broken(
        "meeting",
        "long_doubles",
        "forward",
        "the result is wrong in",
        "a float holds the sum of doubles, in long rows alone",
    ),
    Broken(
        "meeting",
        "below_zero",
        "forward",
        "the result is wrong in",
        "the last number of a long row is compared by its bits",
    ),
    Broken("meeting", "infinity_cut", "special", "the result is wrong in", "an infinity becomes the largest number"),
    Broken(
        "meeting", "empty_segments", "forward", "the result is wrong in", "the largest of nothing is 0 and not -inf"
    ),
    Broken(
        "meeting", "negative_nan", "special", "the result is wrong in", "sorted by bits, a NaN with a sign comes first"
    ),
    Broken("meeting", "whole_numbers", "forward", "the result is wrong in", "whole numbers are multiplied in 32 bits"),
    Broken("meeting", "least_of_bytes", "forward", "the result is wrong in", "sums of two products of bytes saturate"),
    Broken(
        "meeting", "side_at_ties", "forward", "the result is wrong in", "a flag is forgotten that tells at ties alone"
    ),
    Broken(
        "meeting", "decay_uphill", "forward", "the result is wrong in", "wrong where a flag and a number are both set"
    ),
    Broken(
        "meeting",
        "frozen_rows",
        "gradients",
        "asked for alone",
        "the gradient beside a frozen, expanded weight is wrong",
    ),
    Broken(
        "meeting",
        "other_slope",
        "gradients",
        "second derivative",
        "the second derivative is wrong for negative options",
    ),
    Broken(
        "meeting",
        "by_content",
        "state",
        "what a caller writes to a result",
        "hands out what it keeps by the content of its input",
    ),
    Broken("meeting", "by_a_few", "state", "of several calls", "keeps results by a sum and by every seventh number"),
]
