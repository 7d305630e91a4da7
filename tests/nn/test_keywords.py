"""Modules take the keywords of the modules in whose place they stand."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import opwright as ow

PAIRS = [
    (ow.nn.Linear, nn.Linear),
    (ow.nn.Sigmoid, nn.Sigmoid),
    (ow.nn.LLTMCell, nn.LSTMCell),
    (ow.nn.LLTM, nn.LSTM),
]


def test_modules_take_the_keywords_of_torch_nn() -> None:
    x = torch.ones(2, 3)
    assert ow.nn.Linear(3, 2)(input=x).shape == (2, 2)
    assert ow.nn.Sigmoid()(input=x).shape == x.shape
    assert ow.nn.Cube()(input=x).shape == ow.nn.Scale(2.0)(input=x).shape == x.shape
    cell = ow.nn.LLTMCell(3, 4)
    h, c = cell(input=x, hx=(torch.zeros(2, 4), torch.zeros(2, 4)))
    assert h.shape == c.shape == (2, 4)
    assert ow.nn.LLTM(3, 4)(input=x[None], hx=None)[0].shape == (1, 2, 4)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_the_names_and_their_order_are_torch_nns(ours: type[nn.Module], theirs: type[nn.Module]) -> None:
    wanted = [p for p in inspect.signature(theirs.forward).parameters if p != "self"]
    assert [p for p in inspect.signature(ours.forward).parameters if p != "self"][: len(wanted)] == wanted
    built = {"input_size", "hidden_size", "num_layers", "batch_first", "dropout", "bidirectional", "proj_size"}
    names = set(inspect.signature(theirs).parameters) - {"args", "kwargs"} | (built if theirs is nn.LSTM else set())
    assert names <= set(inspect.signature(ours).parameters)


def test_arguments_by_place_still_do() -> None:
    cell = ow.nn.LLTMCell(3, 4)
    x, state = torch.ones(2, 3), (torch.zeros(2, 4), torch.zeros(2, 4))
    assert torch.equal(cell(x, state)[0], cell(input=x, hx=state)[0])
    assert list(cell.state_dict()) == ["weight", "bias"]


def test_a_projection_is_refused() -> None:
    assert ow.nn.LLTM(3, 4, proj_size=0).hidden_size == 4
    with pytest.raises(ValueError, match="LLTM: it has no projection, so that proj_size must be 0, got 2"):
        ow.nn.LLTM(3, 4, proj_size=2)
