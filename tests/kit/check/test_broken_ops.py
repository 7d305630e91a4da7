"""Operators that are wrong on purpose are rejected, each by the property and with the sentence that it must be."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import opwright as ow
from tests.broken_ops import BROKEN, FOLDER, Broken
from tests.kit.check import catalogue

NEW = ("values", "shapes", "together", "indexing", "cheats", "reached", "meeting")
FEW = {
    "no_maximum", "tiny_dropped", "whole_in_doubles", "half_away", "dead_row", "one_length", "square_unchanged",
    "four_million", "eight_tensors", "zero_kept", "sorted_only", "wraps_around", "by_address", "by_count",
    "handed_out_again", "corner_tile", "taken_for_alike", "small_gradients", "third_strides", "infinity_cut",
    "empty_segments", "by_a_few", "decay_uphill",
}  # fmt: skip
"""Of these themes, whose operators are right for what an author thinks of, those that are tried in every run."""
VALUES = ("forward", "special", "gradients", "gradcheck", "undefined", "fake")
"""The properties that a seed decides about."""


def caught(broken: Broken, seed: int) -> None:
    failures = ow.check(broken.op, only=[broken.property], seed=seed).failures
    said = [f.message for f in failures]
    assert any(broken.says in message for message in said), f"seed {seed}: {broken.says!r} is not in {said}"
    assert all(f.property == broken.property and f.replay for f in failures)


def marked(broken: Broken) -> Any:
    slow = broken.theme in NEW and broken.name not in FEW
    return pytest.param(broken, id=broken.name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("broken", [marked(b) for b in BROKEN])
def test_the_check_rejects(broken: Broken) -> None:
    last = 2 if broken.property == "threads" else 0  # a race is run by chance, and may take another try
    for seed in range(last):
        with contextlib.suppress(AssertionError):
            return caught(broken, seed)
    return caught(broken, last)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("broken", [b for b in BROKEN if b.property in VALUES], ids=lambda b: b.name)
def test_the_check_rejects_with_every_seed(broken: Broken) -> None:
    for seed in range(20):
        caught(broken, seed)


def test_every_broken_operator_is_listed() -> None:
    written = [
        (file.parent.name, line.removeprefix("def ").partition("(")[0])
        for file in FOLDER.glob("*/op.py")
        for before, line in zip(*[file.read_text(encoding="utf-8").splitlines()[i:] for i in (0, 1)], strict=False)
        if before.startswith("@ow.op")
    ]
    assert sorted(written) == sorted((b.theme, b.name) for b in BROKEN)
    assert len(BROKEN) >= 40
    assert len({b.mistake for b in BROKEN}) == len(BROKEN)
    assert all(b.says for b in BROKEN)


def test_what_was_measured_is_what_there_is() -> None:
    results = catalogue.measured()
    assert {row["op"]: row["property"] for row in results["rows"]} == {b.name: b.property for b in BROKEN}
    assert results["caught"]["check"] == len(BROKEN)
