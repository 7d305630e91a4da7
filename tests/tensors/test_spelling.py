"""The table of aliases against PyTorch's own documentation, and the spellings that follow from a function."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest
import torch

from opwright.tensors.signature import dotted, learn
from opwright.tensors.spelling import ALIASES, OPERATORS, spellings

# Documented as aliases, but with other arguments.
RELATIVES = {"torch.pinverse", "torch.softmax"}


def documented() -> list[tuple[str, str]]:
    found = []
    modules: list[ModuleType] = [torch, torch.linalg, torch.special]
    for module in modules:
        for name in dir(module):
            text = getattr(getattr(module, name), "__doc__", None)
            match = re.search(r"[Aa]lias (?:for|of) :func:`~?(torch\.[\w.]+)`", text) if isinstance(text, str) else None
            if match and not name.startswith("_"):
                found.append((f"{module.__name__}.{name}", match[1]))
    return found


@pytest.mark.parametrize("alias, function", documented())
def test_every_alias_that_pytorch_documents_is_in_the_table(alias: str, function: str) -> None:
    if alias in RELATIVES or function == "torch.special.polygamma":  # x.polygamma(n) has its own order
        return
    assert any({alias, function} <= set(group) for group in ALIASES)


@pytest.mark.parametrize("name", [name for group in ALIASES for name in group])
def test_every_name_in_the_table_exists(name: str) -> None:
    holder: Any = torch
    for part in name.split(".")[1:]:
        holder = getattr(holder, part)
    assert callable(holder)


def keys(function: Any) -> dict[str, str]:
    return {(dotted(s.key) if callable(s.key) else s.key): s.kind for s in spellings(function)}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_belongs_to_its_function(name: str) -> None:
    assert any(getattr(torch.Tensor, OPERATORS[name][0]) == s.key for s in spellings(getattr(torch, name)))


def test_method_in_place_operator_and_aten_follow_from_the_function() -> None:
    found = keys(torch.sub)
    assert found["torch.Tensor.sub"] == "plain"
    assert found["torch.Tensor.subtract_"] == "in_place"
    assert found["torch.Tensor.__rsub__"] == "reflected"
    assert found["aten::sub"] == "plain"


def test_a_method_with_another_order_of_arguments_is_left_out() -> None:
    assert "torch.Tensor.where" not in keys(torch.where)
    assert "torch.Tensor.normal_" not in keys(torch.normal)


def test_the_other_name_of_an_argument_is_known() -> None:
    swap = next(s for s in spellings(torch.transpose) if s.key is torch.swapaxes)
    assert dict(swap.rename) == {"axis0": "dim0", "axis1": "dim1"}


@pytest.mark.parametrize(
    "function, signature",
    [
        (torch.add, "(input, other, *, alpha=1)"),
        (torch.sum, "(input, dim=None, keepdim=False, *, dtype=None)"),
        (torch.div, "(input, other, *, rounding_mode=None)"),
        (torch.transpose, "(input, dim0, dim1)"),
        (torch.linalg.solve, "(A, B, *, left=True)"),
        (torch.nn.functional.linear, "(input, weight, bias=None)"),
        (torch.norm, "(input, p='fro', dim=None, keepdim=False, dtype=None)"),
        (torch.stack, "(tensors, dim=0)"),
    ],
)
def test_pytorchs_signature_is_learnt_with_every_keyword(function: Any, signature: str) -> None:
    assert str(learn(function)) == signature


def test_names_are_those_a_user_would_type() -> None:
    assert dotted(torch.mm) == "torch.mm"
    assert dotted(torch.norm) == "torch.norm"
    assert dotted(torch.Tensor.pow) == "torch.Tensor.pow"
    assert dotted(torch.ops.aten.add.Tensor) == "torch.ops.aten.add.Tensor"
    assert dotted(torch.Tensor.mT.__get__) == "torch.Tensor.mT"  # type: ignore[attr-defined]
