"""The report says what was observed, of a type that is right and of one that is not."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from opwright.cli.tensors import app
from opwright.tensors import Annotated, Coverage, ScaledIdentity, coverage
from opwright.tensors.coverage import MEANING
from tests.tensors.diagonal import Diagonal


@pytest.fixture(scope="module")
def report() -> Coverage:
    return coverage(ScaledIdentity)


def test_every_overridable_function_is_listed_once(report: Coverage) -> None:
    names = [row.name for row in report.rows]
    assert len(names) == len(set(names))
    for name in ("torch.add", "torch.Tensor.add_", "torch.Tensor.T", "torch.linalg.inv", "torch.nn.functional.linear"):
        assert name in names
    assert sum(report.counts()["all"].values()) == len(names) > 1400


def test_statuses_are_observed(report: Coverage) -> None:
    assert report.status("torch.add") == "own"
    assert report.status("torch.Tensor.add_") == "own"
    assert report.status("torch.Tensor.__add__") == "own"
    assert report.status("torch.Tensor.mT") == "own"
    assert report.status("torch.linalg.solve") == "own"
    assert report.status("torch.exp") == "fallback"
    assert report.status("torch.stack") == "fallback"
    assert report.status("torch.Tensor.exp_") == "raises"
    assert report.status("torch.Tensor.data_ptr") == "raises"
    assert report.status("torch.zeros") == "ignored"
    with pytest.raises(ValueError, match=r"'torch.nonsense' is no overridable torch function"):
        report.status("torch.nonsense")


def test_no_override_of_the_scaled_identity_differs_from_the_dense_result(report: Coverage) -> None:
    assert [row for row in report.rows if row.status == "differs"] == []


def test_most_functions_are_really_tried(report: Coverage) -> None:
    counts = report.counts()["all"]
    tried = counts["own"] + counts["fallback"] + counts["raises"] + counts["differs"]
    assert tried > 0.75 * (tried + counts["untried"])
    assert counts["own"] >= 120


def test_a_wrong_override_is_found() -> None:
    class Wrong(Diagonal):
        pass

    @Wrong.implements(torch.exp)
    def _(input: Any) -> Any:
        return Wrong(input.values.exp())  # e⁰ is 1 off the diagonal

    report = coverage(Wrong, example=Wrong(torch.ones(3)))
    wrong = {row.name for row in report.rows if row.status == "differs"}
    assert wrong == {"torch.exp", "torch.Tensor.exp", "torch.Tensor.exp_"}


def test_an_error_fallback_raises_everywhere_but_in_overrides() -> None:
    class Refusing(ScaledIdentity, fallback="error"):
        pass

    report = coverage(Refusing)
    assert report.counts()["all"]["fallback"] < 40  # what Python or the base answers without asking
    assert report.status("torch.exp") == "raises"
    assert report.status("torch.matmul") == "own"


def test_a_tensor_subclass_needs_no_example() -> None:
    report = coverage(Annotated)
    counts = report.counts()["all"]
    assert counts["own"] == counts["differs"] == 0
    assert counts["raises"] < 10
    assert report.status("torch.Tensor.__deepcopy__") == "fallback"


def test_a_type_without_an_example_says_what_it_needs() -> None:
    with pytest.raises(TypeError, match=r"coverage: needs a value of Diagonal to try; pass example=…"):
        coverage(Diagonal)


def test_it_prints_a_table_by_namespace(report: Coverage) -> None:
    lines = str(report).splitlines()
    assert lines[0].split() == ["ScaledIdentity", *MEANING]
    assert [line.split()[0] for line in lines[1:]] == [*sorted({r.namespace for r in report.rows}), "all"]


def test_the_random_state_and_the_gradient_mode_are_left_alone() -> None:
    state = torch.random.get_rng_state()
    coverage(ScaledIdentity)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "coverage.json"
    ran = CliRunner().invoke(app, ["coverage", "opwright.tensors:ScaledIdentity", "--json", str(file), "--list", "own"])
    assert ran.exit_code == 0, ran.output
    assert "torch.linalg" in ran.output
    assert "torch.linalg.solve" in ran.output
    written = json.loads(file.read_text())
    assert written["type"] == "ScaledIdentity"
    assert set(written["counts"]["all"]) == set(MEANING)
    assert {"name": "torch.add", "status": "own", "note": ""} in written["functions"]


@pytest.mark.parametrize(
    "target, sentence",
    [
        ("opwright.tensors", "must be MODULE:CLASS"),
        ("opwright.nowhere:X", "cannot import"),
        ("opwright.tensors:Nothing", "has no class"),
        ("opwright.tensors:TensorLike", "needs a value of TensorLike"),
    ],
)
def test_the_command_says_what_is_wrong_with_its_argument(target: str, sentence: str) -> None:
    ran = CliRunner().invoke(app, ["coverage", target], env={"COLUMNS": "200"})
    assert ran.exit_code == 2
    assert sentence in ran.output
