"""A convolution and the batch norm behind it, which keep what no gradient can do without."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import opwright as ow

from .across import gathered, summed
from .normal import (
    AXES,
    activate,
    derivative,
    derivative_of_output,
    follows_output,
    moments,
    refuse,
    spread,
    statistics_dtype,
)
from .settings import END, convolve


class Normalised(NamedTuple):
    output: Tensor
    mean: Tensor | None
    var: Tensor | None
    number: Tensor | None
    convolution: Tensor | None


ACTIVATIONS = ("none", "relu", "leaky_relu", "elu", "silu", "gelu")


# Autocast is to do what it does to the convolution inside, and no more.
@ow.op(autocast=("x", "weight"), nondifferentiable=("running_mean", "running_var", "number"))
def conv_bn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    residual: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    *,
    stride: list[int] = [1, 1],  # noqa: B006
    padding: list[int] = [0, 0],  # noqa: B006
    dilation: list[int] = [1, 1],  # noqa: B006
    groups: int = 1,
    eps: float = 1e-5,
    activation: str = "none",
    slope: float = 0.01,
    keep_residual: bool = True,
    keep_output: bool = False,
    keep_convolution: bool = False,
    group: str = "",
    ranks: int = 1,
    settings: int = -1,
) -> Normalised:
    """activation(γ · (conv(x) - mean) / √(var + eps) + β + residual), the gradient of which convolves again.

    Kept for it are x, the weights and the statistics: nothing new of the size of the output. With running statistics it
    normalises by those, and the convolution's own are neither computed nor returned.

    Args:
        x: `[batch, channels, height, width]`
        weight: `[out, channels / groups, height, width]`
        bias: `[out]`, optional; it counts with running statistics, and a batch's own mean takes it away again
        gamma: `[out]`, 1 by default
        beta: `[out]`, 0 by default
        residual: the shape of the output, optional
        running_mean: `[out]`, to normalise by in place of the batch's own, with `running_var`; without a gradient
        running_var: `[out]`
        stride: two numbers, as padding and dilation are
        activation: one of none, relu, leaky_relu, elu, silu, gelu
        slope: that of leaky_relu below 0, and elu's alpha
        keep_residual: let the gradient read the residual, which it does under an activation
        keep_output: let it read the output: under relu, leaky_relu and elu in place of the residual; and, where there
            is no residual and no activation but leaky_relu, to compute the convolution back from it, not again
        keep_convolution: return the convolution as well, and compute nothing again
        group: the name of the process group to share statistics with; none by default
        ranks: how many processes it has
        settings: of torch.backends, under which the convolution is computed now and has to be computed again, as
            `ow.nn.ConvBN2d` notes them; -1: those that will be in force then. 257 more where processes talk to each
            other, so that no launch on a GPU waits for those of theirs

    Equivalent to:
        y = conv2d(x, weight, bias, stride, padding, dilation, groups)
        output = activation(batch_norm(y, running_mean, running_var, gamma, beta, running_mean is None) + residual)

    Returns: `output`; `mean` and `var` of the convolution, without its bias and Bessel's correction; `number`, of how
        many values they are where a group shares them; `convolution`, without its bias too, where it is kept

    >>> import torch, opwright as ow
    >>> x, weight = torch.arange(8.0).reshape(2, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> ow.conv_bn(x, weight, activation="relu").output.flatten()
    tensor([0.0000, 0.0000, 0.0000, 0.0000, 0.2182, 0.6547, 1.0911, 1.5275])
    """
    channels = {"bias": bias, "gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
    refuse(x, weight, channels, residual, stride, padding, dilation, groups, eps, ranks if group else 1)
    ow.require(activation in ACTIVATIONS, "activation must be one of " + ", ".join(ACTIVATIONS) + ", got {activation}")
    ow.require(ranks < 2**63, "ranks must be a number of processes, got {ranks}")
    ow.require(-1 <= settings < END, "settings must be those of opwright.ops.conv_bn.settings, or -1, got {settings}")
    ow.require(
        (running_mean is None) == (running_var is None), "running_mean and running_var must be given both, or neither"
    )
    ow.require(
        residual is None
        or activation == "none"
        or keep_residual
        or (keep_output and follows_output(activation, slope)),
        "its gradient reads the residual under {activation}, so that keep_residual must be True",
    )
    y = convolve(x, weight, stride, padding, dilation, groups)
    wide = y.to(statistics_dtype(y.dtype))
    mean: Tensor | None = None
    var: Tensor | None = None
    number: Tensor | None = None
    if running_mean is not None and running_var is not None:
        centre, spreads = running_mean.detach().to(wide.dtype), running_var.detach().to(wide.dtype)
        centre = centre if bias is None else centre - bias
    else:
        if group:
            centre, spreads, number = gathered(wide, group, ranks)
        else:
            centre, spreads = moments(wide)
        mean, var = centre.clone(), spreads.clone()
    z = (wide - spread(centre)) * spread(torch.rsqrt(spreads + eps))
    z = z if gamma is None else z * spread(gamma)
    z = z if beta is None else z + spread(beta)
    dtype = y.dtype
    if residual is not None:
        z, dtype = z + residual, torch.promote_types(dtype, residual.dtype)
    output = activate(z, activation, slope).to(dtype, copy=True)
    return Normalised(output, mean, var, number, y if keep_convolution else None)


@conv_bn.gradient(when={"residual": "keep_residual", "output": "keep_output"})
def _(
    grad_output: Tensor | None,
    grad_mean: Tensor | None,
    grad_var: Tensor | None,
    grad_convolution: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    output: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    number: Tensor | None,
    convolution: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    eps: float,
    activation: str,
    slope: float,
    keep_residual: bool,
    keep_output: bool,
    group: str,
    settings: int,
    wanted: list[bool],
) -> Any:
    y = convolve(x, weight, stride, padding, dilation, groups, settings) if convolution is None else convolution
    frozen = running_mean is not None and running_var is not None
    centre, spreads = mean, var
    if running_mean is not None and running_var is not None:
        centre, spreads = running_mean.detach(), running_var.detach()
        centre = centre if bias is None else centre.to(statistics_dtype(y.dtype)) - bias
    assert centre is not None
    assert spreads is not None
    wide = y.to(statistics_dtype(y.dtype))
    centred = wide - spread(centre.to(wide.dtype))
    invstd = torch.rsqrt(spreads.to(wide.dtype) + eps)
    hat = centred * spread(invstd)
    d = torch.zeros_like(wide) if grad_output is None else grad_output.to(wide.dtype)
    if activation != "none":
        if keep_output and follows_output(activation, slope):
            d = d * derivative_of_output(output.to(wide.dtype), activation, slope)
        else:
            z = hat if gamma is None else hat * spread(gamma)
            z = z if beta is None else z + spread(beta)
            d = d * derivative(z if residual is None else z + residual, activation, slope)
    sums, products = d.sum(AXES), (d * hat).sum(AXES)
    scale = invstd if gamma is None else invstd * gamma
    d_bias: Tensor | None = None
    if frozen:
        d_y = d * spread(scale)
    else:
        n: Any = y.numel() // max(y.shape[1], 1)
        all_sums, all_products, d_mean, d_var = sums, products, grad_mean, grad_var
        if group:
            assert number is not None
            n = number.to(wide.dtype)
            all_sums, all_products = summed(group, sums, products)
            d_mean, d_var = (None if g is None else summed(group, g)[0] for g in (grad_mean, grad_var))
        d_y = (d - spread(all_sums / n) - hat * spread(all_products / n)) * spread(scale)
        d_y = d_y if d_mean is None else d_y + spread(d_mean / n)
        if d_var is not None:
            # What the mean was rounded by adds up over all values; of a group's it is not worth a collective.
            off = 0 if group else spread(centred.mean(AXES))
            d_y = d_y + (centred - off) * spread(2 * d_var / n)
        d_bias = torch.zeros_like(sums)  # the mean takes it away again
    if frozen and wanted[2]:
        d_bias = d_y.sum(AXES)
    d_y = d_y if grad_convolution is None else d_y + grad_convolution  # which is without the bias
    mask = [wanted[0], wanted[1], False]
    d_x = d_weight = None
    if wanted[0] or wanted[1]:
        d_x, d_weight, _ = torch.ops.aten.convolution_backward(
            d_y.to(y.dtype), x, weight, None, stride, padding, dilation, False, [0, 0], groups, mask
        )
        if d_weight is not None and x.shape[0] == 0:
            d_weight = d_weight.contiguous()  # as fake tensors have it
    return (
        d_x if wanted[0] else None,
        d_weight if wanted[1] else None,
        d_bias.to(bias.dtype) if wanted[2] and bias is not None and d_bias is not None else None,
        products.to(gamma.dtype) if wanted[3] and gamma is not None else None,
        sums.to(beta.dtype) if wanted[4] and beta is not None else None,
        d.to(y.dtype, copy=True) if wanted[5] and (residual is not None or not keep_residual) else None,
    )


@conv_bn.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if not make.dtype.is_floating_point:
        return  # a mean knows no other numbers
    wide = statistics_dtype(make.dtype)

    def channels(n: int) -> tuple[Tensor, ...]:
        return make(n, dtype=wide), make(n, dtype=wide, low=0.5), make(n, dtype=wide)

    x = make(2, 4, 5, 4)
    # eps lets nothing grow: where all values are tiny, what rounding makes of their mean would.
    yield x, make(3, 4, 3, 2), *channels(3), {"padding": [1, 0], "activation": "relu", "eps": 1.0}
    last = x.to(memory_format=torch.channels_last)
    yield last, make(8, 2, 1, 1), None, *channels(8)[1:], make(2, 8, 3, 2), {"stride": [2, 2], "groups": 2}
    shape = {"padding": [1, 1], "dilation": [1, 1]}
    for activation in ("relu", "silu", "leaky_relu"):
        keep = {"keep_residual": activation == "silu", "keep_output": activation != "silu"}
        given = make(2, 4, 3, 3), make(4, 4, 3, 3), *channels(4), make(2, 4, 3, 3)
        yield *given, shape | keep | {"activation": activation, "keep_convolution": activation == "leaky_relu"}
    fixed = make(4, dtype=wide), make(4, dtype=wide, low=0.5)
    yield make(2, 4, 3, 3), make(4, 1, 1, 1), *channels(4), None, *fixed, {"groups": 4, "activation": "gelu"}
    back = {"keep_output": True, "slope": 0.3, "activation": "leaky_relu"}
    yield make(2, 3, 3, 3), make(2, 3, 1, 1), *channels(2), back


@conv_bn.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    x, weight = make(2, 4, 5, 4), make(6, 4, 3, 3)
    yield ValueError, "conv_bn: x must have shape [batch, channels, height, width], got (4, 5, 4)", (x[0], weight)
    yield ValueError, "conv_bn: groups must divide the 4 channels of x, got 3", (x, weight, {"groups": 3})
    yield ValueError, "conv_bn: weight must take the 4 channels of x in 2 groups, 2 each", (x, weight, {"groups": 2})
    yield ValueError, "conv_bn: stride must be two numbers of at least 1, got [0, 1]", (x, weight, {"stride": [0, 1]})
    yield ValueError, "conv_bn: weight must fit into the padded x", (x, make(6, 4, 7, 7))
    other = torch.float32 if make.dtype == torch.float64 else torch.float64
    yield ValueError, "conv_bn: weight must be ", (x, make(6, 4, 3, 3, dtype=other))
    yield (
        ValueError,
        "conv_bn: gamma must have one entry for each of the 6 channels, got (4,)",
        (
            x,
            weight,
            None,
            make(4),
        ),
    )
    yield (
        ValueError,
        "conv_bn: residual must have the shape of the output, (2, 6, 3, 2), got (2, 6, 3, 3)",
        (
            x,
            weight,
            {"residual": make(2, 6, 3, 3)},
        ),
    )
    yield ValueError, "conv_bn: running_mean and running_var must be given both", (x, weight, {"running_mean": make(6)})
    yield (
        ValueError,
        "conv_bn: Expected more than 1 value per channel when training, got input size (1, 6, 1, 1)",
        (
            make(1, 4, 3, 3),
            weight,
        ),
    )
    yield (
        ValueError,
        "conv_bn: its gradient reads the residual under gelu",
        (
            x,
            weight,
            {"residual": make(2, 6, 3, 2), "activation": "gelu", "keep_residual": False},
        ),
    )
    yield ValueError, "conv_bn: activation must be one of none, relu, leaky_relu", (x, weight, {"activation": "tanh"})
    yield TypeError, "conv_bn: weight must be a Tensor, got None", (x, None)


@conv_bn.cost
def _(x: Tensor, weight: Tensor, **rest: Any) -> ow.Cost:
    values, flops = _sizes(x, weight, **rest)
    return ow.Cost(bytes=x.nbytes + weight.nbytes + values * x.itemsize, flops=flops)


@conv_bn.backward.cost
def _(x: Tensor, weight: Tensor, **rest: Any) -> ow.Cost:
    """The convolution once more, and the two of its gradient."""
    values, flops = _sizes(x, weight, **rest)
    return ow.Cost(bytes=2 * x.nbytes + 2 * weight.nbytes + values * x.itemsize, flops=3 * flops)


def _sizes(
    x: Tensor, weight: Tensor, *, stride: list[int], padding: list[int], dilation: list[int], **rest: Any
) -> tuple[int, int]:
    """How many values a convolution has, and how many operations it takes."""
    values = x.shape[0] * weight.shape[0]
    for size, kernel, s, p, d in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True):
        values *= (size + 2 * p - d * (kernel - 1) - 1) // s + 1
    return values, 2 * values * weight[0].numel()


@conv_bn.bench("3x3, 8 images, 32 channels", sizes={"cpu": (7, 14, 28, 56), "cuda": (14, 28, 56, 112)})
def _(make: ow.Maker, n: int) -> Any:
    wide = statistics_dtype(make.dtype)
    given = make(8, 32, n, n), make(32, 32, 3, 3), None, make(32, dtype=wide), make(32, dtype=wide)
    return *given, {"padding": [1, 1], "activation": "relu"}


OF_CHANNELS = ("bias", "gamma", "beta", "running_mean", "running_var")
SIZES = "x[n, c, h, w] weight[o, i, p, q] " + " ".join(f"{name}[o]" for name in OF_CHANNELS)
DOMAIN = ow.Domain(dtypes=ow.FLOATING, wide=OF_CHANNELS, sizes=SIZES)
OF_STATISTICS = (*OF_CHANNELS, "mean", "var", "number", "grad_mean", "grad_var")
# Who differentiates statistics differentiates twice, or wants what no kernel computes: no tensor has this rank.
BY_FORMULA = {"grad_mean": 0, "grad_var": 0, "grad_convolution": 0}
OF_OUTPUT = "".join(f" {name}[n, o, k, l]" for name in ("grad_output", "output", "residual", "convolution"))
SAVED = f"{SIZES} mean[o] var[o] number[]{OF_OUTPUT}"
GRADIENT_DOMAIN = ow.Domain(dtypes=ow.FLOATING, wide=OF_STATISTICS, sizes=SAVED, ranks=BY_FORMULA)
ON_GPU = ow.Options(sources=("float.cu", "double.cu", "half.cu", "bfloat16.cu"), nvccflags=("-compress-mode=size",))
conv_bn.kernel_files("cpu.cpp", domain=DOMAIN, backward=GRADIENT_DOMAIN)
conv_bn.kernel_files("cuda.cu", domain=DOMAIN, backward=GRADIENT_DOMAIN, options=ON_GPU)
# Its pieces are convolved for themselves where all channels of x enter each of the output's; those of a batch share
# their statistics, in the group that a call names.
conv_bn.shard(
    "x[n, c, _, _] weight[o, c, _, _] residual[n, o, _, _] "
    + " ".join(f"{name}[o]" for name in OF_CHANNELS)
    + " -> output[n, o, _, _] mean[o] var[o] number[] convolution[n, o, _, _]",
    over="n o",
    group=("group", "ranks"),
    across="n",
    whole="mean var number",
)
