"""LLTM, one step and whole sequences, with the interface of torch.nn.LSTMCell and torch.nn.LSTM."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from opwright.kit import private
from opwright.ops.lltm.op import lltm
from opwright.ops.lltm_cell.op import lltm_cell

State = tuple[Tensor, Tensor]

STEPS_BESIDE, UNITS_BESIDE = 384, 8192
"""From so many steps on two directions run on two streams, which costs the host some time, and up to so many hidden
units times batch rows: beyond, one of them fills a GPU."""

_streams: dict[tuple[int | None, int], torch.cuda.Stream] = {}
"""The stream beside another one of a device."""


class LLTMCell(nn.Module):
    """One step of LLTM, in place of torch.nn.LSTMCell: `cell(x, (h, c))` gives the next (h, c).

    >>> import torch, opwright as ow
    >>> cell = ow.nn.LLTMCell(3, 4)
    >>> h, c = cell(torch.ones(2, 3))
    >>> cell, h.shape
    (LLTMCell(3, 4), torch.Size([2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _refuse_sizes("LLTMCell", input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.weight = nn.Parameter(torch.empty(3 * hidden_size, hidden_size + input_size, device=device, dtype=dtype))
        self.bias: nn.Parameter | None
        if bias:
            self.bias = nn.Parameter(torch.empty(3 * hidden_size, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform between ±1/√hidden_size."""
        _reset(self, self.hidden_size)

    def forward(self, input: Tensor, hx: State | None = None) -> State:
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"LLTMCell: input must have shape [batch, {self.input_size}] or [{self.input_size}], "
                f"got {tuple(input.shape)}"
            )
        alone = input.dim() == 1
        rows = input[None] if alone else input
        if hx is None:
            h = c = rows.new_zeros(rows.shape[0], self.hidden_size)
        else:
            h, c = (s[None] for s in hx) if alone else hx
        h, c = lltm_cell(rows, self.weight, self.bias, h, c)
        return (h[0], c[0]) if alone else (h, c)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias is not None else ", bias=False")


class LLTM(nn.Module):
    """LLTM over sequences, in place of torch.nn.LSTM: its arguments, inputs and outputs, and the names of its
    parameters, which have 3 rows a hidden unit for LSTM's 4; proj_size can be 0 alone.

    `forward(input, hx, lengths=…, cells=…)` takes besides, for a padded batch, how many steps each sequence has (a
    tensor or a list), and returns on request the cell states of all steps of the last layer, as a third result.

    Args:
        recompute: keep less for the gradient, and compute the gates again for it.

    >>> import torch, opwright as ow
    >>> layer = ow.nn.LLTM(3, 4, num_layers=2, bidirectional=True)
    >>> output, (h_n, c_n) = layer(torch.ones(5, 2, 3))
    >>> layer, output.shape, h_n.shape
    (LLTM(3, 4, num_layers=2, bidirectional=True), torch.Size([5, 2, 8]), torch.Size([4, 2, 4]))
    >>> output, (h_n, c_n), cells = layer(torch.ones(5, 2, 3), lengths=[5, 2], cells=True)
    >>> bool(output[2:, 1].any()), cells.shape
    (False, torch.Size([5, 2, 8]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        proj_size: int = 0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        _refuse_sizes("LLTM", input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if proj_size != 0:
            raise ValueError(f"LLTM: it has no projection, so that proj_size must be 0, got {proj_size!r}")
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(f"LLTM: dropout must be a number between 0 and 1, got {dropout!r}")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"LLTM: dropout is between layers, and one layer has none, got dropout={dropout} and num_layers=1",
                stacklevel=2,
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.recompute = bidirectional, recompute
        directions = 2 if bidirectional else 1
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else directions * hidden_size
            for direction in range(directions):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (3 * hidden_size, inputs),
                    "weight_hh": (3 * hidden_size, hidden_size),
                }
                if bias:
                    shapes |= {"bias_ih": (3 * hidden_size,), "bias_hh": (3 * hidden_size,)}
                for name, shape in shapes.items():
                    parameter = nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
                    self.register_parameter(f"{name}{_suffix(layer, direction)}", parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform between ±1/√hidden_size."""
        _reset(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing: for scripts that ask torch.nn.LSTM to."""

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction."""
        directions = 2 if self.bidirectional else 1
        return [self._weights(layer, d) for layer in range(self.num_layers) for d in range(directions)]

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: State | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        cells: bool = False,
    ) -> Any:
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError("LLTM: a PackedSequence has its lengths; leave out lengths")
            return self._packed(input, hx, cells)
        if not isinstance(input, Tensor):
            raise TypeError(f"LLTM: input must be a Tensor or a PackedSequence, got {type(input).__name__}")
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"LLTM: input must have 3 dimensions, or 2 without a batch, the last of size {self.input_size}, "
                f"got {tuple(input.shape)}"
            )
        alone = input.dim() == 2
        steps = input.unsqueeze(1) if alone else input.transpose(0, 1) if self.batch_first else input
        first = None if hx is None else self._state(hx, steps.shape[1], alone)
        each = None if lengths is None else self._lengths(lengths, steps, alone)
        output, h_n, c_n, states = self._run(steps, first, each, cells)

        def lay(whole: Tensor) -> Tensor:
            return whole.squeeze(1) if alone else whole.transpose(0, 1) if self.batch_first else whole

        state = (h_n.squeeze(1), c_n.squeeze(1)) if alone else (h_n, c_n)
        return (lay(output), state, lay(states)) if states is not None else (lay(output), state)

    def _packed(self, input: PackedSequence, hx: State | None, cells: bool) -> Any:
        """Packed in, packed out. The batch is sorted inside, as it is in the packing."""
        data, sizes, order, back = input
        if data.dim() != 2 or data.shape[1] != self.input_size:
            raise ValueError(f"LLTM: input must have {self.input_size} features, got {tuple(data.shape)} packed")
        padding = _Padding(sizes, data)
        steps = padding.pad(data)
        first = None if hx is None else self._state(hx, steps.shape[1], alone=False)
        if first is not None and order is not None:
            first = first[0].index_select(1, order), first[1].index_select(1, order)
        output, h_n, c_n, states = self._run(steps, first, padding.lengths, cells)
        if back is not None:
            h_n, c_n = h_n.index_select(1, back), c_n.index_select(1, back)

        def pack(whole: Tensor) -> PackedSequence:
            return PackedSequence(padding.unpad(whole), sizes, order, back)

        return (pack(output), (h_n, c_n), pack(states)) if states is not None else (pack(output), (h_n, c_n))

    def _run(
        self, x: Tensor, first: State | None, lengths: Tensor | None, cells: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        op: Any = lltm  # a starred list hides from mypy which arguments it fills
        directions = 2 if self.bidirectional else 1
        h_n, c_n, states = [], [], []
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout > 0:
                x = nn.functional.dropout(x, self.dropout, self.training)
            all_cells = cells and layer == self.num_layers - 1
            options: dict[str, Any] = {"lengths": lengths, "all_cells": all_cells, "recompute": self.recompute}
            calls: list[tuple[Any, ...]] = []
            for d in range(directions):
                state = (None, None) if first is None else tuple(s[layer * directions + d] for s in first)
                weights = self._weights(layer, d)
                calls.append((x, *(weights if self.bias else (*weights, None, None)), *state))
            if self._has_room(x):
                one, two = (partial(op, *args, reverse=d == 1, **options) for d, args in enumerate(calls))
                each = _run_beside(one, two)
            else:
                each = [op(*args, reverse=d == 1, **options) for d, args in enumerate(calls)]
            for _, h, c, of_steps in each:
                h_n.append(h)
                c_n.append(c)
                if of_steps is not None:
                    states.append(of_steps)
            x = each[0].output if directions == 1 else torch.cat([one.output for one in each], 2)
        every = None if not states else states[0] if directions == 1 else torch.cat(states, 2)
        return x, _stacked(h_n), _stacked(c_n), every

    def _has_room(self, x: Tensor) -> bool:
        """Whether the GPU has room for both directions at the same time, and that is worth the host's: each is bound by
        its steps, one after the other."""
        if not self.bidirectional or torch.compiler.is_compiling() or type(x) is not Tensor or not x.is_cuda:
            return False
        if private.transforms_are_active() or private.modes():
            return False
        return x.shape[0] >= STEPS_BESIDE and x.shape[1] * self.hidden_size <= UNITS_BESIDE

    def _weights(self, layer: int, direction: int) -> list[nn.Parameter]:
        # As attributes they cost half a microsecond each; where one is no parameter (parametrized), an attribute it is.
        known, suffix = self._parameters, _suffix(layer, direction)
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if self.bias else ("weight_ih", "weight_hh")
        names = [kind + suffix for kind in kinds]
        return [known[name] if name in known else getattr(self, name) for name in names]  # type: ignore[misc]

    def _state(self, hx: State, batch: int, alone: bool) -> State:
        layers = self.num_layers * (2 if self.bidirectional else 1)
        expected = (layers, self.hidden_size) if alone else (layers, batch, self.hidden_size)
        if not isinstance(hx, (tuple, list)) or len(hx) != 2 or not all(isinstance(state, Tensor) for state in hx):
            raise TypeError(f"LLTM: hx must be (h_0, c_0), two Tensors, got {_kinds(hx)}")
        for name, state in zip(("h_0", "c_0"), hx, strict=True):
            if tuple(state.shape) != expected:
                raise ValueError(f"LLTM: {name} must have shape {expected}, got {tuple(state.shape)}")
        return (hx[0].unsqueeze(1), hx[1].unsqueeze(1)) if alone else hx

    def _lengths(self, lengths: Tensor | Sequence[int], steps: Tensor, alone: bool) -> Tensor:
        if alone:
            raise ValueError("LLTM: lengths are those of a batch, and input has none; cut input instead")
        each = torch.as_tensor(lengths)
        if each.dim() != 1 or each.shape[0] != steps.shape[1] or each.is_floating_point():
            raise ValueError(f"LLTM: lengths must be {steps.shape[1]} integers, one a sequence, got {lengths}")
        # On a GPU reading them would wait for it; there a length beyond the steps counts as all of them.
        known = each.device.type == "cpu" and not torch.compiler.is_compiling() and each.numel() > 0
        if known and (int(each.min()) < 0 or int(each.max()) > steps.shape[0]):
            raise ValueError(f"LLTM: lengths must lie between 0 and the {steps.shape[0]} steps of input, got {lengths}")
        return each.to(steps.device, torch.int64)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        for name, usual in (defaults | {"recompute": False}).items():
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        return text


class _Padding:
    """Between packed rows and `[steps, batch, …]`, in one copy each way: pad_packed_sequence and its like make one for
    each length, and autograd some more."""

    def __init__(self, sizes: Tensor, data: Tensor) -> None:
        self.steps, self.batch = sizes.shape[0], int(sizes[0])
        self.lengths = (sizes[:, None] > torch.arange(self.batch)).sum(0).to(data.device)
        ends = sizes.cumsum(0)
        ends, starts = torch.stack((ends, ends - sizes)).to(data.device)
        # A packed row's step is the number of steps that end before it.
        row = torch.arange(data.shape[0], device=data.device)
        step = torch.searchsorted(ends, row, right=True)
        self.rows = step * self.batch + row - starts[step]

    def pad(self, data: Tensor) -> Tensor:
        whole = data.new_zeros(self.steps * self.batch, *data.shape[1:])
        return whole.index_copy(0, self.rows, data).view(self.steps, self.batch, *data.shape[1:])

    def unpad(self, whole: Tensor) -> Tensor:
        return whole.flatten(0, 1).index_select(0, self.rows)


def _run_beside(one: partial[Any], other: partial[Any]) -> list[Any]:
    """Two calls at the same time. The second has a stream of its own, on which autograd runs its gradient too."""
    here = torch.cuda.current_stream(one.args[0].device)
    key = here.device.index, here.cuda_stream
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(here.device)
    beside = _streams[key]
    # A gradient is to reach its parameter on this stream, where whoever made that expects it.
    seen = [t.view_as(t) if isinstance(t, Tensor) and t.requires_grad else t for t in other.args]
    beside.wait_stream(here)
    try:
        _record((*other.args, *other.keywords.values()), beside)
        with torch.cuda.stream(beside):
            second = other.func(*seen, **other.keywords)
        _record(second, here)
        first = one()
    finally:
        here.wait_stream(beside)  # after an error too: a capture must not end with work that nobody waits for
    return [first, second]


def _record(values: Iterable[Any], stream: torch.cuda.Stream) -> None:
    """Memory is not to be used again while another stream may still work on it."""
    for value in values:
        if isinstance(value, Tensor):
            value.record_stream(stream)


def _stacked(each: list[Tensor]) -> Tensor:
    """The states of layers and directions; of a single one a view, where PyTorch would copy."""
    return each[0].unsqueeze(0) if len(each) == 1 else torch.stack(each)


def _kinds(value: Any) -> str:
    """What something is, as a message names it.

    >>> _kinds((1, "a")), _kinds(None)
    ('(int, str)', 'NoneType')
    """
    if isinstance(value, (tuple, list)):
        return f"({', '.join(type(v).__name__ for v in value)}{',' if len(value) == 1 else ''})"
    return type(value).__name__


def _suffix(layer: int, direction: int) -> str:
    return f"_l{layer}" + ("_reverse" if direction else "")


def _refuse_sizes(name: str, **sizes: Any) -> None:
    for what, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
            raise ValueError(f"{name}: {what} must be a positive integer, got {size!r}")


def _reset(module: nn.Module, hidden: int) -> None:
    bound = 1 / math.sqrt(hidden)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound)
