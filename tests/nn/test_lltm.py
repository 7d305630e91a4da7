"""LLTM stands where nn.LSTM stood, and computes what a plain loop over the cell computes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import opwright as ow


def step(x: Tensor, weights: list[Any], h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    weight_ih, weight_hh, *biases = weights
    gates = x @ weight_ih.t() + h @ weight_hh.t() + sum(biases)
    i, o, g = gates.chunk(3, -1)
    c = c + torch.nn.functional.elu(g) * torch.sigmoid(i)
    return torch.tanh(c) * torch.sigmoid(o), c


def plain(layer: ow.nn.LLTM, sequence: Tensor, state: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence [steps, inputs] through all layers: output, h_n, c_n."""
    h_n, c_n = [], []
    directions = 2 if layer.bidirectional else 1
    for i in range(layer.num_layers):
        outputs = []
        for d in range(directions):
            k = i * directions + d
            h, c = (sequence.new_zeros(layer.hidden_size),) * 2 if state is None else (state[0][k], state[1][k])
            hs = []
            for x in sequence.flip(0) if d else sequence:
                h, c = step(x, layer.all_weights[k], h, c)
                hs.append(h)
            stacked = torch.stack(hs) if hs else sequence.new_zeros(0, layer.hidden_size)
            outputs.append(stacked.flip(0) if d else stacked)
            h_n.append(h)
            c_n.append(c)
        sequence = torch.cat(outputs, 1)
    return sequence, torch.stack(h_n), torch.stack(c_n)


def gradients(module: torch.nn.Module, *outputs: Tensor) -> list[Tensor]:
    total = torch.stack([(o * torch.linspace(0.5, 1.5, o.numel()).to(o).view_as(o)).sum() for o in outputs]).sum()
    return list(torch.autograd.grad(total, list(module.parameters())))


FORMS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"batch_first": True, "bias": False},
    {"bidirectional": True, "batch_first": True, "recompute": True},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("lengths", [None, [5, 2, 0, 3]], ids=str)
def test_layers_directions_and_lengths_are_those_of_a_plain_loop(form: Any, with_state: bool, lengths: Any) -> None:
    layer = ow.nn.LLTM(3, 4, **form).double()
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    state = tuple(torch.randn(2, len(layer.all_weights), 4, 4, dtype=torch.float64)) if with_state else None
    output, (h_n, c_n) = layer(x.transpose(0, 1) if layer.batch_first else x, state, lengths=lengths)
    output = output.transpose(0, 1) if layer.batch_first else output
    each = [
        plain(layer, x[: n if lengths else 5, b], None if state is None else (state[0][:, b], state[1][:, b]))
        for b, n in enumerate(lengths or [5] * 4)
    ]
    expected = torch.nn.utils.rnn.pad_sequence([o for o, _, _ in each])
    h, c = (torch.stack([row[k] for row in each], 1) for k in (1, 2))
    torch.testing.assert_close((output, h_n, c_n), (expected, h, c))
    torch.testing.assert_close(gradients(layer, output, h_n, c_n), gradients(layer, expected, h, c))


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_a_packed_sequence_gives_one_and_matches_the_padded(enforce_sorted: bool) -> None:
    layer = ow.nn.LLTM(3, 4, num_layers=2, bidirectional=True)
    lengths = torch.tensor([5, 3, 2] if enforce_sorted else [2, 5, 3])
    x = torch.randn(5, 3, 3)
    state = tuple(torch.randn(2, 4, 3, 4))
    packed, (h, c), cells = layer(pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted), state, cells=True)
    padded, (h_n, c_n), all_cells = layer(x, state, lengths=lengths, cells=True)
    assert isinstance(packed, PackedSequence)
    assert isinstance(cells, PackedSequence)
    torch.testing.assert_close((h, c), (h_n, c_n))
    for got, expected in ((packed, padded), (cells, all_cells)):
        whole, found = pad_packed_sequence(got)
        assert found.tolist() == lengths.tolist()
        torch.testing.assert_close(whole, expected)
    again, _ = torch.nn.LSTM(8, 2)(packed)  # what PyTorch's own layers take
    assert isinstance(again, PackedSequence)


def test_all_cell_states_are_those_of_a_plain_loop() -> None:
    layer = ow.nn.LLTM(3, 4)
    x = torch.randn(6, 1, 3)
    output, (h_n, c_n), cells = layer(x, cells=True)
    h = c = torch.zeros(1, 4)
    for t in range(6):
        h, c = step(x[t], layer.all_weights[0], h, c)
        torch.testing.assert_close((output[t], cells[t]), (h, c))
    torch.testing.assert_close((h_n[0], c_n[0]), (h, c))


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("form", [{}, {"num_layers": 3}, {"bidirectional": True, "batch_first": True}], ids=str)
def test_shapes_names_and_state_are_those_of_lstm(form: Any, unbatched: bool) -> None:
    ours, theirs = ow.nn.LLTM(3, 4, **form), torch.nn.LSTM(3, 4, **form)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert tuple(p.shape) == (q.shape[0] * 3 // 4, *q.shape[1:])
        assert p.abs().max() <= 0.5
    x = torch.randn(5, 3) if unbatched else torch.randn(5, 2, 3)
    got, expected = ours(x), theirs(x)
    assert got[0].shape == expected[0].shape
    assert got[0].stride() == expected[0].stride()
    assert [s.shape for s in got[1]] == [s.shape for s in expected[1]]
    assert [s.shape for s in ours(x, got[1])[1]] == [s.shape for s in got[1]]
    got[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ours.parameters())
    ours.flatten_parameters()
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(copied(x)[0], ours(x)[0])


def test_dropout_is_between_layers_and_only_in_training() -> None:
    layer = ow.nn.LLTM(3, 8, num_layers=2, dropout=0.5)
    x = torch.randn(4, 2, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    torch.testing.assert_close(layer(x)[0], layer(x)[0])
    with pytest.warns(UserWarning, match="dropout is between layers"):
        ow.nn.LLTM(3, 8, dropout=0.5)


def test_cell_and_layer_agree_and_the_cell_takes_one_row() -> None:
    cell, layer = ow.nn.LLTMCell(3, 4), ow.nn.LLTM(3, 4)
    with torch.no_grad():
        weight_ih, weight_hh, bias_ih, bias_hh = layer.all_weights[0]
        cell.weight.copy_(torch.cat((weight_hh, weight_ih), 1))
        cell.bias.copy_(bias_ih + bias_hh)  # type: ignore[union-attr]
    x = torch.randn(5, 2, 3)
    state = None
    for t in range(5):
        state = cell(x[t], state)
    _, (h_n, c_n) = layer(x)
    torch.testing.assert_close(state, (h_n[0], c_n[0]))
    torch.testing.assert_close(cell(x[0, 0]), tuple(s[0] for s in cell(x[0])))
    assert repr(ow.nn.LLTMCell(3, 4, bias=False)) == "LLTMCell(3, 4, bias=False)"
    assert repr(ow.nn.LLTM(3, 4, 2, dropout=0.5)) == "LLTM(3, 4, num_layers=2, dropout=0.5)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.ones(5, 2, 4)), "input must have 3 dimensions, or 2 without a batch, the last of size 3"),
        (lambda m: m(torch.ones(5, 2, 3), (torch.ones(1, 3, 4),) * 2), r"h_0 must have shape \(1, 2, 4\)"),
        (lambda m: m(torch.ones(5, 2, 3), lengths=[5, 6]), "lengths must lie between 0 and the 5 steps"),
        (lambda m: m(torch.ones(5, 2, 3), lengths=torch.tensor([-1, 2])), "lengths must lie between 0 and the 5 steps"),
        (lambda m: m(torch.ones(5, 2, 3), lengths=[5]), "lengths must be 2 integers"),
        (lambda m: m(torch.ones(5, 3), lengths=[5]), "lengths are those of a batch"),
        (lambda m: m(pack_sequence([torch.ones(2, 4)])), "input must have 3 features"),
    ],
)
def test_wrong_input_is_refused_in_words(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"LLTM: {message}"):
        call(ow.nn.LLTM(3, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text",), "input must be a Tensor or a PackedSequence, got str"),
        ((torch.ones(5, 2, 3), (torch.ones(1, 2, 4),)), r"hx must be \(h_0, c_0\), two Tensors, got \(Tensor,\)"),
        ((torch.ones(5, 2, 3), torch.ones(1, 2, 4)), r"hx must be \(h_0, c_0\), two Tensors, got Tensor"),
        ((torch.ones(5, 2, 3), (torch.ones(1, 2, 4), None)), r"got \(Tensor, NoneType\)"),
    ],
)
def test_what_is_no_tensor_is_refused_in_words(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"LLTM: .*{message}"):
        ow.nn.LLTM(3, 4)(*arguments)


def test_wrong_sizes_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="LLTM: num_layers must be a positive integer, got 0"):
        ow.nn.LLTM(3, 4, num_layers=0)
    with pytest.raises(ValueError, match=r"LLTMCell: hidden_size must be a positive integer, got 2\.5"):
        ow.nn.LLTMCell(3, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"LLTMCell: input must have shape \[batch, 3\]"):
        ow.nn.LLTMCell(3, 2)(torch.ones(2, 2))


def test_the_state_of_a_single_layer_is_not_copied() -> None:
    x = torch.randn(3, 2, 4)
    for layers, copies in ((1, False), (2, True)):
        layer = ow.nn.LLTM(4, 5, layers)
        with torch.no_grad(), torch.autograd.profiler.profile() as seen:
            _, (h_n, c_n) = layer(x)
        assert ("aten::stack" in {e.name for e in seen.function_events}) is copies
        assert h_n.shape == c_n.shape == (layers, 2, 5)
    h_n, c_n = ow.nn.LLTM(4, 5)(x)[1]
    h_n.mul_(2).sum().backward()  # its own to write, as LSTM's is


def test_a_layer_trains_compiled() -> None:
    layer = ow.nn.LLTM(2, 8)
    head = torch.nn.Linear(8, 1)
    compiled = torch.compile(lambda x: head(layer(x)[1][0][0]), fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.02)
    x = torch.rand(6, 32, 2)
    y = x[0, :, :1]
    losses = []
    for _ in range(40):
        loss = torch.nn.functional.mse_loss(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [4, 4], [1]], ids=str)
def test_gradients_of_packed_rows_are_those_of_padded_ones(lengths: list[int]) -> None:
    layer = ow.nn.LLTM(3, 4, bidirectional=True)
    padded = torch.randn(lengths[0], len(lengths), 3, requires_grad=True)
    packed = pack_padded_sequence(padded, torch.tensor(lengths))
    by_rows, (h_n, _) = layer(packed)
    output, (h, _) = layer(padded, lengths=lengths)
    torch.testing.assert_close(pad_packed_sequence(by_rows)[0], output)
    torch.testing.assert_close(h_n, h)
    weights = torch.linspace(0.5, 1.5, output.numel()).view_as(output)
    found = torch.autograd.grad((pad_packed_sequence(by_rows)[0] * weights).sum() + h_n.sum(), padded)
    expected = torch.autograd.grad((output * weights).sum() + h.sum(), padded)
    torch.testing.assert_close(found, expected)
