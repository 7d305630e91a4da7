"""Modules take the keywords of the modules in whose place they stand."""

from __future__ import annotations

import torch

import opwright as ow


def test_modules_take_the_keywords_of_torch_nn() -> None:
    x = torch.ones(2, 3)
    assert ow.nn.Linear(3, 2)(input=x).shape == (2, 2)
    assert ow.nn.Sigmoid()(input=x).shape == x.shape
    cell = ow.nn.LLTMCell(3, 4)
    h, c = cell(input=x, hx=(torch.zeros(2, 4), torch.zeros(2, 4)))
    assert h.shape == c.shape == (2, 4)
    assert ow.nn.LLTM(3, 4)(input=x[None], hx=None)[0].shape == (1, 2, 4)
