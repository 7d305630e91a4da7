"""Old names work, and say where they are used, until when, and what to write instead."""

from __future__ import annotations

import inspect
import linecache
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit import deprecated
from opwright.kit.deprecated import Deprecation
from release.api import deprecations
from release.api.entries import Entry

TABLE = (
    Deprecation("opwright.measure", since="0.3", gone="0.4", instead="opwright.bench"),
    Deprecation("opwright.check(start=)", since="0.3", gone="0.4", instead="seed="),
    Deprecation("opwright.check(fast=)", since="0.3", gone="0.5"),
    Deprecation("older.cubed", since="0.3", gone="0.4", instead="older.cube"),
    Deprecation("older", since="0.3", gone="0.4", instead="opwright.nn"),
    Deprecation("older.Old.size", since="0.3", gone="0.4", instead="older.New.size"),
    Deprecation("opwright bench --fast", since="0.3", gone="0.4", instead="--quick"),
    Deprecation("OPWRIGHT_FAST", since="0.3", gone="0.4", instead="OPWRIGHT_QUICK"),
)


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecated, "DEPRECATED", TABLE)


@pytest.fixture
def said() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings as a user's script shows them: one for each place."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default", DeprecationWarning)
        yield found


def places(said: list[warnings.WarningMessage]) -> list[str]:
    """The lines of this file that were warned about."""
    assert {(w.filename, w.category) for w in said} <= {(__file__, DeprecationWarning)}
    return [linecache.getline(w.filename, w.lineno).strip() for w in said]


def test_a_function_warns_at_the_line_that_calls_it_once(said: list[warnings.WarningMessage]) -> None:
    @deprecated.function("opwright.measure")
    def measure(x: int, *, y: int = 1) -> int:
        """Measures."""
        return x + y

    for _ in range(3):
        assert measure(1, y=2) == 3
    assert places(said) == ["assert measure(1, y=2) == 3"]
    message = "opwright.measure is deprecated since 0.3 and gone in 0.4; write opwright.bench instead"
    assert str(said[0].message) == message
    measure(1)
    assert len(said) == 2  # another place
    assert measure.__doc__ == "Measures."
    assert list(inspect.signature(measure).parameters) == ["x", "y"]


def test_a_renamed_keyword_reaches_the_new_parameter(said: list[warnings.WarningMessage]) -> None:
    @deprecated.parameter("opwright.check(start=)", to="seed")
    @deprecated.parameter("opwright.check(fast=)")
    def check(op: str, /, *, seed: int = 0) -> tuple[str, int]:
        return op, seed

    old: Any = check
    assert check("op", seed=1) == ("op", 1)
    assert not said
    assert old("op", start=2) == ("op", 2)
    assert places(said) == ['assert old("op", start=2) == ("op", 2)']
    assert old("op", fast=True) == ("op", 0)
    assert places(said)[1] == 'assert old("op", fast=True) == ("op", 0)'  # below two decorators
    assert "opwright.check(fast=) is deprecated since 0.3 and gone in 0.5; leave it out" in str(said[1].message)
    with pytest.raises(TypeError, match="start is the old name of seed; give seed alone"):
        old("op", start=2, seed=1)
    with pytest.raises(TypeError, match="unexpected keyword"):
        old("op", begin=2)


def test_an_old_name_of_a_module_is_the_new_thing_and_warns(
    said: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators are served so as well: the old name is the same operator."""
    older: Any = ModuleType("older")
    older.cube = ow.cube
    older.__getattr__ = lambda name: deprecated.attribute("older", name, {"cubed": lambda: older.cube})
    monkeypatch.setitem(sys.modules, "older", older)
    assert older.cubed is ow.cube
    from older import cubed  # type: ignore[import-not-found]

    assert torch.equal(cubed(torch.ones(2)), torch.ones(2))
    first, second = places(said)
    assert first == "assert older.cubed is ow.cube"
    assert second.startswith("from older import cubed")
    with pytest.raises(AttributeError, match="older has no 'squared'"):
        older.squared  # noqa: B018


def test_a_property_warns_where_it_is_read(
    said: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old:
        @property
        @deprecated.function("older.Old.size")
        def size(self) -> int:
            """Its size."""
            return 3

    assert Old().size == 3
    assert places(said) == ["assert Old().size == 3"]
    older: Any = ModuleType("older")
    older.Old = Old
    monkeypatch.setitem(sys.modules, "older", older)
    assert not [m for m in deprecations.missing("0.3.0", []) if "older.Old" in m]


def test_a_module_that_moved_gives_the_names_of_the_new_one(
    said: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    older: Any = ModuleType("older")
    older.__getattr__ = deprecated.module("older", "opwright.nn")
    monkeypatch.setitem(sys.modules, "older", older)
    assert not [m for m in deprecations.missing("0.3.0", []) if m.startswith("older:")]
    assert older.Cube is ow.nn.Cube
    assert places(said) == ["assert older.Cube is ow.nn.Cube"]
    with pytest.raises(AttributeError, match=r"'opwright\.nn' has no attribute 'Cubed'"):
        older.Cubed  # noqa: B018


def test_an_old_function_costs_no_graph(said: list[warnings.WarningMessage]) -> None:
    @deprecated.function("opwright.measure")
    @deprecated.parameter("opwright.check(start=)", to="seed")
    def measure(x: torch.Tensor, *, seed: int = 0) -> torch.Tensor:
        return x + seed

    compiled: Any = torch.compile(measure, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2), start=1), torch.full((2,), 2.0))
    assert not said


def test_an_old_variable_is_read_where_the_new_one_is_not_set(
    said: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deprecated.variable("OPWRIGHT_FAST", "OPWRIGHT_QUICK") == ""
    monkeypatch.setenv("OPWRIGHT_FAST", "1")
    assert deprecated.variable("OPWRIGHT_FAST", "OPWRIGHT_QUICK") == "1"
    assert places(said) == ['assert deprecated.variable("OPWRIGHT_FAST", "OPWRIGHT_QUICK") == "1"']
    monkeypatch.setenv("OPWRIGHT_QUICK", "2")
    assert deprecated.variable("OPWRIGHT_FAST", "OPWRIGHT_QUICK") == "2"
    assert len(said) == 1


def test_an_old_option_is_told_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    deprecated.option("opwright bench --fast")
    assert capsys.readouterr().err.startswith("opwright: opwright bench --fast is deprecated since 0.3")


def test_what_is_not_in_the_table_cannot_be_deprecated() -> None:
    with pytest.raises(LookupError, match=r"opwright\.gauge is not in DEPRECATED"):
        deprecated.function("opwright.gauge")


@pytest.mark.parametrize(
    "since, gone, why",
    [
        ("0.3", "0.3", "at least"),
        ("0.4", "0.3", "at least"),
        ("0.3.1", "0.4", "such as 0.3"),
        ("1.2", "1.3", "in a major version, such as 2.0"),
        ("1.2", "2.1", "in a major version"),
    ],
)
def test_a_deprecation_lasts_for_a_release(since: str, gone: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Deprecation("opwright.measure", since, gone)
    assert Deprecation("opwright.measure", "0.9", "1.0").overdue("1.0.0")


def test_an_overdue_deprecation_is_found() -> None:
    assert deprecations.overdue("0.3.7") == []
    (first, *others) = deprecations.overdue("0.4.0")
    assert first.startswith("opwright.measure was to be gone in 0.4, and this is 0.4.0: take it out")
    assert len(others) == 6  # all but the one that has until 0.5


def test_a_deprecated_name_that_is_gone_too_soon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    public = [Entry("option", "opwright bench --fast"), Entry("variable", "OPWRIGHT_QUICK")]
    missing = deprecations.missing("0.3.0", public)
    assert [m.partition(":")[0] for m in missing] == [t.what for t in TABLE if t.kind != "option"]

    def measure() -> None: ...

    monkeypatch.setattr(ow, "measure", measure, raising=False)
    assert "opwright.measure: it works without a warning" in deprecations.missing("0.3.0", public)[0]
    monkeypatch.setattr(ow, "measure", deprecated.function("opwright.measure")(measure))
    monkeypatch.setattr(ow, "check", deprecated.parameter("opwright.check(fast=)")(ow.check))
    left = {m.partition(":")[0] for m in deprecations.missing("0.3.0", [*public, Entry("variable", "OPWRIGHT_FAST")])}
    assert left == {"opwright.check(start=)", "older", "older.cubed", "older.Old.size"}
    assert {m.partition(":")[0] for m in deprecations.missing("0.4.0", public)} == set()


def test_a_promise_of_the_last_release_is_kept() -> None:
    before = [Entry("deprecated", "OPWRIGHT_FAST", ": since 0.3, gone in 0.4")]
    assert deprecations.early("0.3.1", before, [])
    assert not deprecations.early("0.3.1", before, before)
    assert not deprecations.early("0.4.0", before, [])
