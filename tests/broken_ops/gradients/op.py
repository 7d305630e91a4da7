"""The result is right, its gradients are not."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
ANY = ow.Domain(dtypes=FLOATS)
PAIR = ow.Domain(dtypes=FLOATS, broadcast=True)


def one(make: ow.Maker) -> Iterator[Any]:
    for shape in ((5,), (4, 3), (), (0, 2)):
        yield make(*shape)


def pairs(make: ow.Maker) -> Iterator[Any]:
    yield make(5), make(5)
    yield make(4, 3), make(4, 3)
    yield make(0, 2), make(0, 2)


@ow.op(namespace="broken")
def one_input_wrong(x: Tensor, y: Tensor) -> Tensor:
    """x · y; the gradient of y is that of x."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x * y


@ow.op(namespace="broken")
def second_wrong(x: Tensor) -> Tensor:
    """x³; its first derivative is right, its second 3x instead of 6x."""
    return x * x * x


@ow.op(namespace="broken")
def detached_formula(x: Tensor) -> Tensor:
    """eˣ; its gradient is right and holds the result as a constant, so that the second derivative is lost."""
    return x.exp()


@ow.op(namespace="broken")
def broadcast_unreduced(x: Tensor, y: Tensor) -> Tensor:
    """x + y; the gradient of a y that was broadcast has the shape of x."""
    ow.require(ow.broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
    return x + y


@ow.op(namespace="broken")
def broadcast_summed_wrong(x: Tensor, y: Tensor) -> Tensor:
    """x + y; the gradient of a y of shape (n, 1) is summed over the rows and then reshaped."""
    ow.require(x.dim() == 2 and ow.broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
    return x + y


@ow.op(namespace="broken")
def number_gradient(x: Tensor, *, a: float = 2.0) -> Tensor:
    """a · x; its gradient gives one for the number a too."""
    return x * a


@ow.op(namespace="broken")
def index_gradient(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x; its gradient gives one for the integers of index too."""
    ow.require(x.dim() == 2 and index.dim() == 1, "x must be [n, k] and index [m], got {x.shape} and {index.shape}")
    return x.index_select(0, index)


@ow.op(namespace="broken")
def unwanted_computed(x: Tensor, y: Tensor) -> Tensor:
    """x · y; computes both gradients, whichever is wanted."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x * y


@ow.op(namespace="broken")
def undefined_as_zeros(x: Tensor) -> tuple[Tensor, Tensor]:
    """Row sums and x²; takes a sum's gradient that is absent for zeros of the shape of x."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1), x * x


@ow.op(namespace="broken")
def undefined_refused(x: Tensor) -> tuple[Tensor, Tensor]:
    """eˣ and x²; its gradient insists on both incoming ones."""
    return x.exp(), x * x


@ow.op(namespace="broken")
def edge_gradient(x: Tensor) -> Tensor:
    """relu(x); its slope at 0 is 1 instead of 0."""
    return x.relu()


@ow.op(namespace="broken")
def wider_gradient(x: Tensor) -> Tensor:
    """x + 1; its gradient is float32 for a bfloat16 x."""
    return x + 1


@ow.op(namespace="broken")
def conjugate_forgotten(x: Tensor, y: Tensor) -> Tensor:
    """x · y; its gradients lack the conjugate that complex numbers need."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x * y


@ow.op(namespace="broken")
def infinite_slope(x: Tensor) -> Tensor:
    """√x; its gradient mends the division by a result of 0 with a 0."""
    return x.sqrt()


@ow.op(namespace="broken")
def gradient_overwrites(x: Tensor) -> Tensor:
    """2 · x; its gradient doubles the incoming one in place."""
    return x * 2


_each: ow.Op[..., Any]
for _each in (one_input_wrong, unwanted_computed):
    _each.samples(pairs)
    _each.kernel_file("cpu.cpp", PAIR)
    _each.backward.kernel_file("cpu.cpp", ANY)
second_wrong.samples(one)
second_wrong.kernel_file("cpu.cpp", ANY)
second_wrong.backward.kernel_file("cpu.cpp", ANY)
second_wrong.backward.backward.kernel_file("cpu.cpp", ANY)


@broadcast_unreduced.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 3), make(4, 3)
    yield make(4, 3), make(3)


broadcast_unreduced.kernel_file("cpu.cpp", PAIR)
broadcast_unreduced.backward.kernel_file("cpu.cpp", ANY)


@broadcast_summed_wrong.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 4), make(4, 4)
    yield make(4, 4), make(4, 1)


broadcast_summed_wrong.kernel_file("cpu.cpp", PAIR)


@broadcast_summed_wrong.gradient
def _(grad: Tensor, x: ow.Like, y: ow.Like) -> Any:
    return grad.clone(), grad.clone() if y.shape == grad.shape else grad.sum(0).reshape(y.shape)


edge_gradient.kernel_file("cpu.cpp", ANY)
edge_gradient.backward.kernel_file("cpu.cpp", ANY)


@edge_gradient.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(4, 6).round()


wider_gradient.samples(one)
wider_gradient.kernel_file("cpu.cpp", ow.Domain(dtypes=(*FLOATS, torch.bfloat16)))
wider_gradient.backward.kernel_file("cpu.cpp", ow.Domain(dtypes=(*FLOATS, torch.bfloat16)))


@index_gradient.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 3), torch.tensor([0, 2, 2])


@index_gradient.kernel("cpu", ow.Domain(dtypes=(*FLOATS, torch.int64), mixed=True))
def _(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


@index_gradient.backward.kernel("cpu", ow.Domain(dtypes=(*FLOATS, torch.int64), mixed=True))
def _(grad: Tensor, x: Tensor, index: Tensor, wanted: Any = None) -> Any:
    return x.new_zeros(x.shape).index_add_(0, index, grad), torch.zeros_like(index, dtype=grad.dtype)


# From here the mistakes are in formulas, which are used where a kernel ran.

for _each in (detached_formula, number_gradient, infinite_slope, gradient_overwrites):
    _each.kernel("cpu", ANY)(_each.reference)
detached_formula.samples(one)
gradient_overwrites.samples(one)


@detached_formula.gradient
def _(grad: Tensor, x: Tensor) -> Tensor:
    return grad * x.detach().exp().conj()


@number_gradient.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(4, 3), {"a": -1.0}


@number_gradient.gradient
def _(grad: Tensor, x: Tensor, a: float) -> Any:
    return grad * a, (grad * x).sum()


@infinite_slope.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5, low=0.5, high=2.0)
    yield torch.cat([make(3, low=0.5, high=2.0), make(1) * 0])


@infinite_slope.gradient
def _(grad: Tensor, result: Tensor) -> Tensor:
    return torch.where(result == 0, 0, grad / (2 * result.conj()))


@gradient_overwrites.backward.kernel("cpu", ANY)
def _(grad: Tensor, x: Tensor, wanted: Any = None) -> Tensor:
    return grad.detach().mul_(2) * 1


@undefined_as_zeros.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 3)


@undefined_as_zeros.kernel("cpu", ANY)
def _(x: Tensor) -> Any:
    return x.sum(-1), x * x


@undefined_as_zeros.gradient
def _(grad_0: Tensor | None, grad_1: Tensor | None, x: Tensor) -> Tensor:
    sums = torch.zeros_like(x) if grad_0 is None else grad_0
    squares = torch.zeros_like(x) if grad_1 is None else grad_1
    return sums.unsqueeze(-1) + 2 * x * squares


undefined_refused.samples(one)


@undefined_refused.kernel("cpu", ANY)
def _(x: Tensor) -> Any:
    return x.exp(), x * x


@undefined_refused.gradient
def _(grad_0: Tensor | None, grad_1: Tensor | None, x: Tensor) -> Tensor:
    return grad_0 * x.exp() + 2 * x * grad_1  # type: ignore[operator]


conjugate_forgotten.samples(pairs)


@conjugate_forgotten.kernel("cpu", ow.Domain(dtypes=(*FLOATS, torch.complex64, torch.complex128)))
def _(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@conjugate_forgotten.gradient
def _(grad: Tensor, x: Tensor, y: Tensor) -> Any:
    return grad * y, grad * x
