"""$name: say in one line what it is for."""

import torch

import opwright as ow


@ow.op
def $name(x: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x / √(mean(x²) + eps), over the last dimension.

    Args:
        x: `[..., n]`, floating-point
        eps: what keeps a row of zeros finite; no gradient

    Equivalent to: `torch.nn.functional.rms_norm(x, x.shape[-1:], eps=eps)`
    """
    ow.require(x.is_floating_point() and x.dim() > 0, "x must be floating-point and have rows, got {x.dtype} {x.shape}")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


# The gradient by a formula, whose kernel reads what the names of its parameters say. Without it the gradient is derived
# from the reference, and computes the forward again.
@$name.gradient
def _(grad, x, eps):
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (grad - x * (r.square() * (grad * x).mean(-1, keepdim=True))) * r


@$name.samples
def _(make):
    yield make(3)
    yield make(16, 33), {"eps": 1e-3}
    yield make(5, 4, 7).transpose(0, 1)
    yield make(0, 4)


@$name.rejects
def _(make):
    yield ValueError, "x must be floating-point and have rows", make(3, dtype=torch.int64)
    yield ValueError, "x must be floating-point and have rows", make()


@$name.cost
def _(x, eps):
    return ow.Cost(bytes=2 * x.nbytes, flops=3 * x.numel())


@$name.backward.cost
def _(grad, x, eps, wanted):
    return ow.Cost(bytes=3 * x.nbytes, flops=8 * x.numel())


@$name.bench("rows", sizes=(64, 1024, 4096), at=1024)
def _(make, n):
    return make(1024, n)


# Where the kernels may run; everywhere else the reference does. Built on first use.
DOMAIN = ow.Domain(dtypes=ow.FLOATING, sizes="x[..., n]"$layout)
$name.kernel_files($files, domain=DOMAIN, backward=DOMAIN)
