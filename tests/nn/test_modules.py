"""The modules stand where torch.nn's stood."""

from __future__ import annotations

import torch

import opwright as ow


def test_linear_exchanges_its_state_with_torchs() -> None:
    ours, theirs = ow.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(2, 5, 3)
    torch.testing.assert_close(ours(x), theirs(x))
    assert repr(ours) == repr(theirs)
    torch.manual_seed(3)
    first = ow.nn.Linear(3, 4, bias=False)
    torch.manual_seed(3)
    torch.testing.assert_close(first.weight, torch.nn.Linear(3, 4, bias=False).weight)
    assert first(x).shape == (2, 5, 4)


def test_modules_without_parameters_show_what_they_are() -> None:
    assert repr(ow.nn.Sigmoid()) == "Sigmoid()"
    assert repr(ow.nn.Cube(inplace=True)) == "Cube(inplace=True)"
    assert repr(ow.nn.Scale(0.5, inplace=True)) == "Scale(factor=0.5, inplace=True)"


def test_in_place_modules_write_to_their_input() -> None:
    for module in (ow.nn.Sigmoid(inplace=True), ow.nn.Cube(inplace=True), ow.nn.Scale(2.0, inplace=True)):
        x = torch.full((2,), 2.0)
        assert module(x) is x
        assert x[0].item() != 2.0


def test_a_network_of_them_trains_and_compiles() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(ow.nn.Linear(2, 8), ow.nn.Sigmoid(), ow.nn.Linear(8, 1), ow.nn.Scale(2.0))
    step = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.rand(64, 2)
    y = (x[:, :1] > x[:, 1:]).float()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(step(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
