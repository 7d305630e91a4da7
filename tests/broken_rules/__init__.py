"""Rules of sharding that are wrong on purpose: each operator is right, and one thing that is said of its pieces is not.

The property `sharding` must reject every one, with the sentence that stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import opwright as ow

FILE = Path(__file__).parent / "op.py"


@dataclass(frozen=True)
class BrokenRule:
    """An operator with a wrong rule, and what the check says of it."""

    name: str
    says: str
    mistake: str

    @property
    def op(self) -> ow.Op[..., Any]:
        """The operator itself."""
        found: ow.Op[..., Any] = getattr(load(), self.name)
        return found


@cache
def load() -> Any:
    """The operators, from their file."""
    return ow.load(FILE)


BROKEN_RULES = [
    BrokenRule("bias_twice", "cut along k into 2", "a bias is added by every device to its summand"),
    BrokenRule("relu_of_sum", "cut along k into 2", "a sum that something nonlinear is done to is taken for a sum"),
    BrokenRule("softmax_cut", "cut along k into 2", "a softmax over the dimension that is cut"),
    BrokenRule("flag_forgotten", "cut along b into 2", "right for one value of a flag only"),
    BrokenRule("mean_of_means", "cut along b into 2", "a mean is taken for a sum"),
    BrokenRule("batch_statistics", "cut along b into 2", "each device takes mean and variance of its own rows"),
    BrokenRule("cumulative", "cut along k into 2", "a cumulative sum begins anew on every device"),
    BrokenRule("padded_edges", "cut along n into 2", "zeros stand where a neighbour's elements should"),
    BrokenRule("transposed_wrong", "cut along n into 2", "the gradient's rule has a matrix the other way round"),
    BrokenRule("largest_as_sum", "cut along k into 2", "a maximum is taken for a sum"),
    BrokenRule("sorted_pieces", "cut along n into 2", "each device sorts its own piece"),
    BrokenRule("divided_by_size", "cut along b into 2", "a number in it is the size of the whole"),
    BrokenRule("positions", "cut along n into 2", "each device counts positions from zero"),
    BrokenRule("flipped", "cut along n into 2", "the order of the pieces changes, and not only theirs"),
    BrokenRule("keys_cut", "cut along m into 2", "attention over keys that are cut"),
    BrokenRule("product_of_sums", "cut along k into 2", "a product of two sums is taken for a sum of products"),
    BrokenRule("tape_turned", "cut along b into 2", "an extra result is described the other way round"),
    BrokenRule("needs_two_rows", "it raised ValueError for piece", "a piece may be smaller than it takes"),
    BrokenRule("once_in_product", "cut along k into 2", "a factor is said to enter a sum once"),
    BrokenRule("pairs", "cut along n into 3", "neighbours are taken in pairs, which a cut may part"),
    BrokenRule("one_of_two", "cut along b into 2", "one of two results, a maximum, is taken for a sum"),
    BrokenRule("once_rectified", "cut along k into 2", "a term that enters a sum once is rectified first"),
    BrokenRule("once_largest", "cut along k into 2", "the largest of a term is taken from each summand of it"),
    BrokenRule("once_median", "cut along k into 2", "a median, which is linear along one direction alone"),
    BrokenRule("once_in_rows", "cut along r into 2", "a term that a result needs whole is said to enter a sum once"),
    BrokenRule("by_parity", "cut along b into", "a branch is taken by the size of the whole"),
    BrokenRule("count_in_a_tensor", "cut along b into 2", "the size of the whole, in a tensor"),
    BrokenRule("whole_of_pieces", "cut along b into 2", "a sum of its own rows is said to be whole on every device"),
    BrokenRule("channels_in_groups", "cut along o into 2", "channels that belong to groups of the input's are cut"),
    BrokenRule("fits_nothing", "no sample fits", "patterns that no call has"),
    BrokenRule("saturates", "cut along k into 2", "a sum that is bounded, beyond the numbers of its samples"),
    BrokenRule("skips_unless_finite", "cut along b into 3", "one number that is not finite stops its own device alone"),
    BrokenRule(
        "integers_otherwise", "cut along k into 2", "a sum of floating-point numbers, and the largest of integers"
    ),
    BrokenRule("flag_untried", "cut along b into 2", "wrong for a flag that no sample sets"),
]
