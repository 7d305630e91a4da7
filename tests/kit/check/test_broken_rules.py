"""Rules of sharding that are wrong on purpose are rejected; what the check says can be replayed."""

from __future__ import annotations

import pytest

import opwright as ow
from tests.broken_rules import BROKEN_RULES, FILE, BrokenRule


@pytest.mark.parametrize("broken", BROKEN_RULES, ids=lambda b: b.name)
def test_a_wrong_rule_is_found(broken: BrokenRule) -> None:
    failures = ow.check(broken.op, only=["sharding"]).failures
    said = [f.message for f in failures]
    assert any(broken.says in message for message in said), said
    assert all(f.property == "sharding" and f"--case {f.op}:" in f.replay for f in failures)


def test_a_finding_is_found_again_by_its_replay() -> None:
    failure = ow.check(BROKEN_RULES[0].op, only=["sharding"]).failures[0]
    case = failure.replay.split("--case ")[1].split()[0]
    again = ow.check(BROKEN_RULES[0].op, only=["sharding"], case=case)
    assert [f.message for f in again.failures] == [failure.message]
    assert sum(r.cases for r in again.results) == 1


def test_every_wrong_rule_is_listed() -> None:
    written = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line.startswith("def ")]
    names = [line.removeprefix("def ").partition("(")[0] for line in written]
    assert sorted(n for n in names if n not in ("_", "matrices", "products")) == sorted(b.name for b in BROKEN_RULES)
    assert len(BROKEN_RULES) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("broken", [b for b in BROKEN_RULES if b.name != "needs_two_rows"], ids=lambda b: b.name)
def test_the_operator_itself_is_right(broken: BrokenRule) -> None:
    """Only its rule is wrong, so that nothing else can have found it."""
    assert ow.check(broken.op, only=["forward", "gradients"]).passed
