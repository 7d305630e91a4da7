"""The cell as tutorials write it: C++ that calls PyTorch's operators, one after the other. It is measured beside the
fused kernels, to show what C++ alone brings."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu, linear

import opwright as ow

from .op import SIZES, State, lltm_cell


@ow.op
def lltm_cell_tensors(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> State:
    """lltm_cell in C++ on tensors."""
    return State(*lltm_cell.reference(x, weight, bias, h, c))


@lltm_cell_tensors.saving("i", "o", "g", "joined")
def _(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Any:
    joined = torch.cat((h, x), 1)
    i, o, g = linear(joined, weight, bias).chunk(3, 1)
    i, o, g = torch.sigmoid(i), torch.sigmoid(o), elu(g)
    c = c + g * i
    return torch.tanh(c) * o, c, i, o, g, joined


@lltm_cell_tensors.gradient
def _(
    grad_h: Tensor, grad_c: Tensor, weight: Tensor, c: Tensor, i: Tensor, o: Tensor, g: Tensor, joined: Tensor
) -> Any:
    tanh = torch.tanh(c + g * i)
    d_c = grad_h * o * (1 - tanh * tanh) + grad_c
    d_gates = (d_c * g * i * (1 - i), grad_h * tanh * o * (1 - o), d_c * i * torch.where(g > 0, 1, g + 1))
    d = torch.cat(d_gates, 1)
    d_joined = d @ weight
    hidden = c.shape[1]
    return d_joined[:, hidden:], d.t() @ joined, d.sum(0), d_joined[:, :hidden], d_c


lltm_cell_tensors.samples(lambda make: (s for s in lltm_cell.spec.samples[0](make) if s[2] is not None))

_FLOATS = (torch.float32, torch.float64)
_ATEN = ow.Options(abi="aten")
lltm_cell_tensors.kernel_file("tensors.cpp", ow.Domain(dtypes=_FLOATS, sizes=SIZES), _ATEN)
assert lltm_cell_tensors.saving_form is not None
lltm_cell_tensors.saving_form.kernel_file("tensors.cpp", ow.Domain(dtypes=_FLOATS, sizes=SIZES), _ATEN)
lltm_cell_tensors.backward.kernel_file("tensors.cpp", ow.Domain(dtypes=_FLOATS), _ATEN)
