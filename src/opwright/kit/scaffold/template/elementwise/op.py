"""$name: say in one line what it is for."""

import torch

import opwright as ow


@ow.op
def $name(x: torch.Tensor, *, beta: float = 1.0) -> torch.Tensor:
    """x · sigmoid(beta · x), elementwise.

    Args:
        x: `[...]`, floating-point
        beta: how sharply it bends; no gradient

    Equivalent to: `x * torch.sigmoid(beta * x)`
    """
    ow.require(x.is_floating_point(), "x must be floating-point, got {x.dtype}")
    return x * torch.sigmoid(beta * x)


# The gradient by a formula, whose kernel reads what the names of its parameters say. Without it the gradient is derived
# from the reference, and computes the forward again.
@$name.gradient
def _(grad, x, beta):
    s = torch.sigmoid(beta * x)
    return grad * (s * (1 + beta * x * (1 - s)))


@$name.samples
def _(make):
    yield make(3)
    yield make(64, 33), {"beta": 2.0}
    yield make(5, 4).t()
    yield make(0)


@$name.rejects
def _(make):
    yield ValueError, "x must be floating-point", make(3, dtype=torch.int64)
    yield TypeError, "beta must be a float", (make(3), {"beta": "2"})


@$name.cost
def _(x, beta):
    return ow.Cost(bytes=2 * x.nbytes, flops=5 * x.numel())


@$name.backward.cost
def _(grad, x, beta, wanted):
    return ow.Cost(bytes=3 * x.nbytes, flops=9 * x.numel())


# Where the kernels may run; everywhere else the reference does. Built on first use.
DOMAIN = ow.Domain(dtypes=ow.FLOATING)
$name.kernel_files($files, domain=DOMAIN, backward=DOMAIN)
