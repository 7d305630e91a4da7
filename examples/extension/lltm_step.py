"""An extension that exists, made an operator: `opwright check examples/extension/lltm_step.py` says what holds of it.

`lltm.cpp`, and `lltm_cuda.cpp` with `lltm_cuda_kernel.cu`, are written as PyTorch's tutorial on extensions writes them.
Nothing in them knows of opwright.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, linear

import opwright as ow

FOLDER = Path(__file__).parent


class Step(NamedTuple):
    new_h: Tensor
    new_c: Tensor


def plain(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Step:
    """i, o, g = [h, x] Wᵀ + b; c' = c + elu(g)·sigmoid(i); h' = tanh(c')·sigmoid(o)."""
    i, o, g = linear(torch.cat((h, x), 1), weight, bias).chunk(3, 1)
    new_c = c + elu(g) * torch.sigmoid(i)
    return Step(torch.tanh(new_c) * torch.sigmoid(o), new_c)


def adopted(extension: Any, device: str, domain: ow.Domain) -> ow.Op[..., Any]:
    """The extension's two functions as one operator."""
    return ow.adopt(
        extension.forward,
        backward=extension.backward,
        reference=plain,
        name="lltm_step",
        saves=["i", "o", "g", "joined", "gates"],
        takes=["grad_new_h", "grad_new_c", "new_c", "i", "o", "g", "joined", "gates", "weight"],
        gives=["x", "weight", "bias", "h", "c"],
        device=device,
        domain=domain,
    )


ANY = ow.Domain(dtypes=(torch.float32, torch.float64))
# The one for CUDA refuses what is not contiguous: the reference takes that.
CONTIGUOUS = ow.Domain(dtypes=(torch.float32, torch.float64), layout="contiguous")

if torch.cuda.is_available():
    sources = [FOLDER / "lltm_cuda.cpp", FOLDER / "lltm_cuda_kernel.cu"]
    lltm_step = adopted(ow.load_extension(sources, name="lltm_cuda"), "cuda", CONTIGUOUS)
else:
    lltm_step = adopted(ow.load_extension(FOLDER / "lltm.cpp", name="lltm_cpp"), "cpu", ANY)


@lltm_step.samples
def _(make: ow.Maker) -> Iterator[Any]:
    for batch, inputs, hidden in ((5, 4, 3), (2, 3, 7)):
        state = make(batch, hidden), make(batch, hidden)
        yield make(batch, inputs), make(3 * hidden, hidden + inputs), make(3 * hidden), *state
