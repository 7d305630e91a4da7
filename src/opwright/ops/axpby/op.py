"""a·x + b·y."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


# Inductor fuses it with its neighbours, which no kernel of ours can.
@ow.op(compile="inline", vmap="leading")
def axpby(x: Tensor, y: Tensor, *, a: ow.Number = 1, b: ow.Number = 1) -> Tensor:
    """a·x + b·y in one pass.

    Broadcasts and promotes types as PyTorch's arithmetic does.

    Args:
        x: `[...]`
        y: `[...]`, broadcastable with x
        a: the factor of x; no gradient
        b: the factor of y; no gradient

    Equivalent to: `a * x + b * y`

    >>> import torch, opwright as ow
    >>> ow.axpby(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]), a=2)
    tensor([ 6.,  9., 12.])
    """
    ow.require(ow.broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
    return a * x + b * y


@axpby.gradient
def _(grad: Tensor, x: ow.Like, y: ow.Like, a: ow.Number, b: ow.Number, wanted: list[bool]) -> Any:
    a, b = (n if isinstance(n, bool) else n.conjugate() for n in (a, b))  # of a bool Dynamo knows none
    return (
        ow.reduce_to(a * grad, x) if wanted[0] else None,
        ow.reduce_to(b * grad, y) if wanted[1] else None,
    )


@axpby.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3), make(3), {"a": 2}
    yield make(3), make(3), {"a": 3, "b": -1}
    yield make(2, 3), make(2, 3), {"a": 0.5, "b": 1.5}
    yield make(6, 1), make(8)
    yield make(4, 5).t(), make(5, 4)[:, 1:2], {"a": -1.0}
    yield make(), make(2)
    yield make(0, 3), make(3)


@axpby.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield ValueError, "axpby: x and y must broadcast, got (3,) and (4,)", (make(3), make(4))
    yield TypeError, "axpby: y must be a Tensor, got float 1.0", (make(3), 1.0)
    yield TypeError, "axpby: a must be a number, got str '2'", (make(3), make(3), {"a": "2"})
    yield TypeError, "axpby: a must be a number, got Tensor", (make(3), make(3), {"a": make(1)})


@axpby.cost
def _(x: Tensor, y: Tensor, a: ow.Number, b: ow.Number) -> ow.Cost:
    results = torch.broadcast_shapes(x.shape, y.shape).numel()
    size = torch.result_type(x, y).itemsize
    return ow.Cost(bytes=x.nbytes + y.nbytes + results * size, flops=3 * results)


@axpby.backward.cost
def _(grad: Tensor, x: Tensor, y: Tensor, a: ow.Number, b: ow.Number, wanted: Any) -> ow.Cost:
    return ow.Cost(bytes=grad.nbytes + x.nbytes + y.nbytes, flops=2 * grad.numel())


SIZES = {
    "cpu": (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 22),
    "cuda": (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24, 1 << 26),
}


@axpby.bench("contiguous", sizes=SIZES, at={"cpu": 1 << 20, "cuda": 1 << 24})
def _(make: ow.Maker, n: int) -> Any:
    return make(n), make(n), {"a": 2}


@axpby.bench("transposed", sizes={"cpu": (256, 1024), "cuda": (1024, 4096)})
def _(make: ow.Maker, n: int) -> Any:
    return make(n, n).t(), make(n, n), {"a": 2}


axpby.rival("torch.add", lambda x, y, *, a=1, b=1: torch.add(b * y if b != 1 else y, x, alpha=a))


DOMAIN = ow.Domain(dtypes=ow.FLOATING, broadcast=True)
axpby.kernel_files("cpu.cpp", "cuda.cu", domain=DOMAIN, backward=ow.Domain(dtypes=ow.FLOATING))

axpby_ = ow.in_place(axpby)
