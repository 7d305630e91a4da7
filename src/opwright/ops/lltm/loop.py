"""LLTM's loop over steps in plain PyTorch."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import elu, linear

import opwright as ow


@dataclass
class Steps:
    """The loop in plain PyTorch, forward and backward. Everything in it has the steps first."""

    x: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    h_0: Tensor | None
    c_0: Tensor | None
    lengths: Tensor | None
    reverse: bool

    def __post_init__(self) -> None:
        """Raise where shapes and dtypes do not fit."""
        x, weight_ih, weight_hh, lengths = self.x, self.weight_ih, self.weight_hh, self.lengths
        ow.require(x.is_floating_point(), "x must be a floating-point tensor, got {x.dtype}", NotImplementedError)
        ow.require(
            weight_hh.dim() == 2 and weight_hh.shape[0] == 3 * weight_hh.shape[1],
            "weight_hh must have shape [3·hidden, hidden], got {weight_hh.shape}",
        )
        rows, hidden = weight_hh.shape
        ow.require(
            weight_ih.dim() == 2 and weight_ih.shape[0] == rows,
            "weight_ih must have the {rows} rows of weight_hh, got {weight_ih.shape}",
        )
        inputs = weight_ih.shape[1]
        ow.require(
            x.dim() == 3 and x.shape[2] == inputs,
            "x must have 3 dimensions, the last of size {inputs} to fit weight_ih, got {x.shape}",
        )
        batch = x.shape[1]
        for name, bias in (("bias_ih", self.bias_ih), ("bias_hh", self.bias_hh)):  # noqa: B007  the message says it
            ow.require(bias is None or bias.shape == (rows,), "{name} must have shape ({rows},), got {bias.shape}")
        for name, state in (("h_0", self.h_0), ("c_0", self.c_0)):  # noqa: B007  the message says it
            ow.require(
                state is None or state.shape == (batch, hidden),
                "{name} must have shape ({batch}, {hidden}), got {state.shape}",
            )
        ow.require(
            lengths is None or (lengths.shape == (batch,) and lengths.dtype == torch.int64),
            "lengths must have shape ({batch},) and dtype int64, got {lengths.shape} and {lengths.dtype}",
        )
        also = " or float32" if x.dtype in (torch.float16, torch.bfloat16) else ""
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "h_0", "c_0", "lengths"):
            other: Tensor | None = getattr(self, name)
            if other is None:
                continue
            ow.require(other.device == x.device, "{name} must be on {x.device}, as x is, got {other.device}")
            if name == "c_0":  # a sum of many steps
                wide = bool(also) and other.dtype == torch.float32
                ow.require(wide or other.dtype == x.dtype, "c_0 must be {x.dtype}, as x is{also}, got {other.dtype}")
            elif name != "lengths":
                ow.require(other.dtype == x.dtype, "{name} must be {x.dtype}, as x is, got {other.dtype}")

    @property
    def order(self) -> range:
        steps = range(self.x.shape[0])
        return steps[::-1] if self.reverse else steps

    @property
    def batch(self) -> int:
        return self.x.shape[1]

    @property
    def hidden(self) -> int:
        return self.weight_hh.shape[1]

    def running(self, t: int) -> Tensor | None:
        return None if self.lengths is None else (self.lengths > t)[:, None]

    @property
    def inputs(self) -> Tensor:
        """x, with zeros beyond the lengths: what is not finite there would not be zero in the gradient of weight_ih."""
        if self.lengths is None:
            return self.x
        t = torch.arange(self.x.shape[0], device=self.x.device)[:, None]
        return torch.where((t < self.lengths)[..., None], self.x, 0)

    def project(self) -> Tensor:
        return linear(self.inputs, self.weight_ih, self.bias_ih)

    def forward(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Output, h_n, c_n, cells and gates: i and o after their functions, g before it."""
        z = self.project()
        wide = torch.promote_types(z.dtype, torch.float32)
        h = z.new_zeros(self.batch, self.hidden) if self.h_0 is None else _fresh(self.h_0, z.dtype)
        first = z.new_zeros(self.batch, self.hidden) if self.c_0 is None else self.c_0
        c = _fresh(first, torch.promote_types(first.dtype, wide))
        hs, cs, gates = ([part] * len(self.order) for part in (h, c, h))
        for t in self.order:
            i, o, g = (z[t] + linear(h, self.weight_hh, self.bias_hh)).to(wide).chunk(3, 1)
            i, o = torch.sigmoid(i), torch.sigmoid(o)
            c_t = c + elu(g) * i
            h_t = (torch.tanh(c_t) * o).to(z.dtype)
            hs[t], cs[t], gates[t] = h_t, c_t, torch.cat((i, o, g), 1)
            on = self.running(t)
            if on is None:
                h, c = h_t, c_t
            else:
                h, c = torch.where(on, h_t, h), torch.where(on, c_t, c)
                hs[t], cs[t], gates[t] = (torch.where(on, part, 0) for part in (hs[t], cs[t], gates[t]))
        if not len(self.order):
            empty = z[..., : self.hidden]
            return empty.clone(), h, c.to(first.dtype), empty.to(first.dtype, copy=True), z
        cells = torch.stack(cs).to(first.dtype)
        return torch.stack(hs), h.clone(), c.to(first.dtype, copy=True), cells, torch.stack(gates)

    def backward(
        self,
        grad_output: Tensor | None,
        grad_h_n: Tensor | None,
        grad_c_n: Tensor | None,
        grad_cells: Tensor | None,
        output: Tensor,
        gates: Tensor | None,
        cells: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of the pre-activations, h before each step, the gradients of h_0 and c_0.

        Gates that were not kept are computed again. Of those that were, g is that before its function: elu' of a
        rounded elu would have lost its digits near -1.
        """
        dtype, wide = output.dtype, torch.promote_types(output.dtype, torch.float32)
        state = output.new_zeros(self.batch, self.hidden)
        d_h = state.to(wide) if grad_h_n is None else _fresh(grad_h_n, wide)
        d_c = state.to(wide) if grad_c_n is None else _fresh(grad_c_n, wide)
        before = self.states_before(state if self.h_0 is None else self.h_0.to(dtype), output)
        z = self.project() if gates is None else gates
        d = [state] * len(self.order)
        for t in reversed(self.order):
            on = self.running(t)
            if gates is None:
                i, o, g = (z[t] + linear(before[t], self.weight_hh, self.bias_hh)).to(wide).chunk(3, 1)
                # Rounded as they would have been kept: a kernel may put them where it would have kept them.
                i, o, g = (part.to(dtype).to(wide) for part in (torch.sigmoid(i), torch.sigmoid(o), g))
            else:
                i, o, g = gates[t].to(wide).chunk(3, 1)
            tanh = torch.tanh(cells[t].to(wide))
            e_h = d_h if grad_output is None else d_h + grad_output[t]
            e_c = d_c + e_h * o * (1 - tanh * tanh)
            e_c = e_c if grad_cells is None else e_c + grad_cells[t]
            d_g = e_c * i * torch.exp(g.clamp(max=0))  # elu'
            d[t] = torch.cat((e_c * elu(g) * i * (1 - i), e_h * tanh * o * (1 - o), d_g), 1).to(dtype)
            back = (d[t] @ self.weight_hh).to(wide)
            if on is not None:
                d[t] = torch.where(on, d[t], 0)
                back, e_c = torch.where(on, back, d_h), torch.where(on, e_c, d_c)
            d_h, d_c = back, e_c
        whole = torch.stack(d) if d else output.new_zeros(0, self.batch, 3 * self.hidden)
        return whole, before, d_h, d_c

    def states_before(self, first: Tensor, output: Tensor) -> Tensor:
        """h before each step."""
        if not len(self.order):
            return output
        if self.order.step > 0:
            return torch.cat((first[None], output[:-1]))
        before = torch.cat((output[1:], first[None]))
        if self.lengths is None:
            return before
        last = torch.arange(1, len(self.order) + 1, device=output.device)[:, None] >= self.lengths
        return torch.where(last[..., None], first, before)


def _fresh(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).clone(memory_format=torch.contiguous_format)
