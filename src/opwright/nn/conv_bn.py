"""A convolution with the batch norm behind it, in one layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from opwright.ops.conv_bn import settings
from opwright.ops.conv_bn.op import conv_bn
from opwright.ops.track_statistics.op import track_statistics

Keep = Literal["input", "output", "all"]
ACTIVATIONS = ("none", "relu", "leaky_relu", "elu", "silu", "gelu")
SLOPES = {"leaky_relu": 0.01, "elu": 1.0}
KEEPS = ("input", "output", "all")
PLAIN: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda z, slope: z,
    "relu": lambda z, slope: F.relu(z),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "silu": lambda z, slope: F.silu(z),
    "gelu": lambda z, slope: F.gelu(z),
}
"""The activations as PyTorch has them."""
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)
_NOTHING = nullcontext()  # one for all: entering it again is nothing too


class ConvBN2d(nn.Module):
    """activation(batch_norm(conv(x)) + residual), which keeps its input for the gradient and nothing of its own.

    `conv` and `bn` are a torch.nn.Conv2d and a torch.nn.BatchNorm2d with their arguments, parameters and buffers, so
    that checkpoints go either way; what they compute is one operator. Where `bn` is in evaluation mode, its running
    statistics are constants, also while the rest trains. Parts that have hooks (those of pruning and of weight_norm,
    too) are called as they are, one by one.

    Args:
        activation: None, relu, leaky_relu, elu, silu or gelu
        slope: of leaky_relu below 0 (0.01 by default), or elu's alpha (1 by default)
        keep: what the gradient is computed from. `"input"`: the convolution is computed again. `"output"`: it is
            computed back from the output, where there is no residual and no activation but leaky_relu, and γ and β let
            enough of it through; else it is computed again. `"all"`: what PyTorch keeps, the convolution and, with a
            residual under an activation, their sum
        process_group: share statistics with these processes, as torch.nn.SyncBatchNorm does

    >>> import torch, opwright as ow
    >>> layer = ow.nn.ConvBN2d(3, 8, 3, padding=1, bias=False, activation="relu")
    >>> layer(torch.randn(2, 3, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    >>> sorted(layer.state_dict())[:3]
    ['bn.bias', 'bn.num_batches_tracked', 'bn.running_mean']
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Any = "zeros",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        slope: float | None = None,
        keep: Keep = "input",
        process_group: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, **made
        )
        bn = nn.BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats, **made)
        self._hold(conv, bn, activation, slope, keep, process_group)

    @classmethod
    def of(
        cls,
        conv: nn.Conv2d,
        bn: nn.BatchNorm2d | nn.SyncBatchNorm,
        activation: str | None = None,
        slope: float | None = None,
        keep: Keep = "input",
        process_group: Any = None,
    ) -> ConvBN2d:
        """The layer of a convolution and a batch norm that exist, which become parts of it.

        >>> import torch, opwright as ow
        >>> layer = ow.nn.ConvBN2d.of(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
        >>> layer.conv.out_channels
        4
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._hold(conv, bn, activation, slope, keep, process_group)
        layer.training = bn.training
        return layer

    def _hold(
        self,
        conv: nn.Conv2d,
        bn: nn.BatchNorm2d | nn.SyncBatchNorm,
        activation: str | None,
        slope: float | None,
        keep: Keep,
        process_group: Any,
    ) -> None:
        _refuse_part("conv", conv, nn.Conv2d)
        _refuse_part("bn", bn, *NORMS)
        if bn.num_features != conv.out_channels:
            raise ValueError(
                f"ConvBN2d: the batch norm must have the {conv.out_channels} channels of the convolution, "
                f"got {bn.num_features}"
            )
        if (activation or "none") not in ACTIVATIONS:
            raise ValueError(
                f"ConvBN2d: activation must be None or one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        if keep not in KEEPS:
            raise ValueError(f"ConvBN2d: keep must be one of {', '.join(KEEPS)}, got {keep!r}")
        self.conv, self.bn = conv, bn
        self.activation = activation or "none"
        self.slope = float(SLOPES.get(self.activation, 0.01) if slope is None else slope)
        self.keep: Keep = keep
        self.process_group = process_group

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        parts: Any = self._modules
        given = input, residual, self.activation, self.slope, self.keep, self.process_group
        return fused(parts["conv"], parts["bn"], *given)

    def fold(self) -> nn.Conv2d:
        """A convolution that does what convolution and batch norm do in evaluation, without residual and activation.

        >>> import torch, opwright as ow
        >>> layer = ow.nn.ConvBN2d(3, 4, 1).eval()
        >>> x = torch.randn(2, 3, 5, 5)
        >>> torch.allclose(layer.fold()(x), layer(x), atol=1e-6)
        True
        """
        if self.bn.running_mean is None or self.bn.running_var is None:
            raise ValueError("ConvBN2d: fold needs running statistics, and track_running_stats is False")
        conv, bn = self.conv, self.bn
        folded = nn.Conv2d(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,  # type: ignore[arg-type]
            conv.groups,
            True,
            conv.padding_mode,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
        )
        mean, var = self.bn.running_mean.double(), self.bn.running_var.double()
        with torch.no_grad():
            scale = torch.rsqrt(var + bn.eps)
            scale = scale if bn.weight is None else scale * bn.weight.double()
            shift = (-mean if conv.bias is None else conv.bias.double() - mean) * scale
            folded.weight.copy_(conv.weight.double() * scale[:, None, None, None])
            assert folded.bias is not None
            folded.bias.copy_(shift if bn.bias is None else shift + bn.bias.double())
        folded.train(self.training)
        return folded

    def extra_repr(self) -> str:
        said = [] if self.activation == "none" else [f"activation={self.activation}"]
        said += [f"slope={self.slope}"] if self.activation in SLOPES else []
        said += [] if self.keep == "input" else [f"keep={self.keep}"]
        return ", ".join([*said, *(["synchronised"] if self.process_group is not None else [])])


def _refuse_part(name: str, part: nn.Module, *kinds: type[nn.Module]) -> None:
    """Raise where a part is of another kind, or of a subclass that computes something else."""
    wanted, kind = " or ".join(f"torch.nn.{k.__name__}" for k in kinds), type(part)
    if not isinstance(part, kinds):
        raise TypeError(f"ConvBN2d: {name} must be a {wanted}, got {kind.__name__}")
    if not any(kind.forward is k.forward for k in kinds):
        raise TypeError(f"ConvBN2d: {name} must compute what a {wanted} does, and {kind.__name__} has its own forward")


def fused(
    conv: nn.Conv2d,
    bn: nn.BatchNorm2d | nn.SyncBatchNorm,
    input: Tensor,
    residual: Tensor | None,
    activation: str,
    slope: float,
    keep: Keep,
    process_group: Any = None,
) -> Tensor:
    """What a convolution, the batch norm behind it, an addition and an activation compute, in one operator."""
    symbolic = type(input) is not Tensor and isinstance(input, fx.Proxy)  # torch.fx records the parts
    if not symbolic and input.dim() != 4:
        raise ValueError(f"ConvBN2d: input must have 4 dimensions, got {input.dim()}")
    training = bn.training
    traced = torch._C._get_tracing_state() is not None
    # A traced batch would have its size for ever.
    if symbolic or hooked(conv) or hooked(bn) or (traced and training):
        if process_group is not None:
            raise RuntimeError(
                "ConvBN2d: a process_group cannot be shared by parts that have hooks or are traced while they train; "
                "make bn a torch.nn.SyncBatchNorm"
            )
        z = bn(conv(input))
        return PLAIN[activation](z if residual is None else z + residual, slope)
    # PyTorch's addition says what comes of another dtype. And what it returns is kept by the activation behind it, and
    # written to by nobody, as the residual and the output may be: with "all" a gradient reads neither.
    apart = keep == "all" and activation not in ("none", "relu")
    if residual is not None and (apart or residual.dtype != output_dtype(input)):
        z = fused(conv, bn, input, None, "none", 0.0, keep, process_group)
        return PLAIN[activation](z + residual, slope)
    x, padding = padded(conv, input)
    weight, bias, gamma, beta, mean, var, batches = _tensors_of(conv, bn)
    batch = training or mean is None
    group, ranks = "", 1
    if training and (process_group is not None or isinstance(bn, nn.SyncBatchNorm)):
        group, ranks = _shared_with(bn.process_group if process_group is None else process_group)
    # What the gradient of an activation reads beside the convolution where something is added: the residual, or the
    # output, to which nobody may write from then on. Of ReLU PyTorch keeps the output itself. Of the others it keeps
    # neither, and it is the output that models write to (`y += x`, an activation in place): a residual is mostly the
    # input of some convolution, which keeps it anyway.
    of_output = residual is not None and (
        activation == "relu" or (keep == "output" and activation in SLOPES and slope >= 0)
    )
    invertible = activation == "none" or (activation == "leaky_relu" and slope > 0)
    recorded = torch.is_grad_enabled()
    graph = traced or torch.compiler.is_compiling()
    on_gpu = x.is_cuda
    # Graphs compute what they compute again under what is in force when they run.
    told = settings.now(on_gpu) if recorded and keep != "all" and not graph else -1
    if on_gpu and settings.in_company():
        told += settings.APART
    autocast: Any = _NOTHING
    kind = "cuda" if on_gpu else x.device.type
    if not graph and kind != "meta" and torch.is_autocast_enabled(kind):  # of meta nobody may ask
        # As the operator declares it, whose own way to do so leads through Python.
        cast = torch.get_autocast_dtype(kind)
        x, weight = _cast(x, cast), _cast(weight, cast)
        autocast = torch.autocast(kind, enabled=False)
    with autocast:
        found = conv_bn(
            x,
            weight,
            bias,
            gamma,
            beta,
            residual,
            None if batch else mean,
            None if batch else var,
            stride=conv.stride,  # type: ignore[arg-type]
            padding=padding,  # type: ignore[arg-type]
            dilation=conv.dilation,  # type: ignore[arg-type]
            groups=conv.groups,
            eps=bn.eps,
            activation=activation,
            slope=slope,
            keep_residual=residual is None or not (of_output or activation == "none"),
            keep_output=of_output or (keep == "output" and residual is None and invertible),
            keep_convolution=keep == "all" and recorded,
            group=group,
            ranks=ranks,
            settings=told,
        )
        output: Tensor = found.output
        if training and mean is not None and bn.track_running_stats:
            values = output.numel() // max(bn.num_features, 1)
            batch_mean = found.mean if bias is None else found.mean + bias.detach()
            given: Any = (mean, var, batches, batch_mean, found.var, found.number)
            track_statistics(*given, values=values, momentum=bn.momentum)
    return output


def hooked(part: nn.Module) -> bool:
    """Whether a module does more, or else, than its class."""
    own = part.__dict__
    return bool(
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or "_conv_forward" in own
    )


def _cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as autocast has it."""
    return t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t


def _tensors_of(conv: nn.Module, bn: nn.Module) -> tuple[Any, ...]:
    """Their parameters and buffers. As attributes they cost half a microsecond each, which a block on a GPU has little
    to spare of; where one is neither (parametrized, or set by a hook), attributes they are."""
    c, p, b = conv._parameters, bn._parameters, bn._buffers
    plain = "weight" in c and "bias" in c and "weight" in p and "bias" in p
    if plain and "running_mean" in b and "running_var" in b and "num_batches_tracked" in b:
        statistics = b["running_mean"], b["running_var"], b["num_batches_tracked"]
        return c["weight"], c["bias"], p["weight"], p["bias"], *statistics
    return conv.weight, conv.bias, bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.num_batches_tracked


def _shared_with(process_group: Any) -> tuple[str, int]:
    """The name and the size of a process group, that of all processes by default."""
    from torch import distributed

    if process_group is None:
        if not distributed.is_available() or not distributed.is_initialized():
            raise RuntimeError("ConvBN2d: statistics are shared in a process group; call init_process_group first")
        process_group = distributed.group.WORLD
    return process_group.group_name, process_group.size()


def output_dtype(x: Tensor) -> torch.dtype:
    """The dtype of what a convolution returns, under autocast too."""
    kind = x.device.type
    if kind == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def output_shape(conv: nn.Conv2d, x: Tensor) -> tuple[int, ...]:
    """The shape of what a convolution returns."""
    size = []
    for d, (stride, dilation, kernel) in enumerate(zip(conv.stride, conv.dilation, conv.kernel_size, strict=True)):
        reach = dilation * (kernel - 1)
        around = 2 * conv.padding[d] if not isinstance(conv.padding, str) else reach if conv.padding == "same" else 0
        size.append((x.shape[d + 2] + around - reach - 1) // stride + 1)  # type: ignore[operator]
    return (x.shape[0], conv.out_channels, *size)


def synchronise(model: nn.Module, process_group: Any = None) -> nn.Module:
    """Share the statistics of every batch norm in a model, ConvBN2d's and fused ones too, between processes.

    The counterpart of torch.nn.SyncBatchNorm.convert_sync_batchnorm, by which it goes; changes the model, and returns
    what stands in its place. Without a group, between all processes.

    >>> import torch, opwright as ow
    >>> model = torch.nn.Sequential(ow.nn.ConvBN2d(3, 4, 1))
    >>> type(ow.nn.synchronise(model)[0].bn).__name__
    'SyncBatchNorm'
    """
    found: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model, process_group)
    return found


def padded(conv: nn.Conv2d, x: Tensor) -> tuple[Tensor, Sequence[int]]:
    """The input, and what is left to the convolution of its padding: the same number of zeros on either side."""
    padding = conv.padding
    if conv.padding_mode != "zeros":
        return F.pad(x, conv._reversed_padding_repeated_twice, mode=conv.padding_mode), [0, 0]
    if not isinstance(padding, str):
        return x, padding
    if padding == "valid":
        return x, [0, 0]
    reach = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    odd = [r % 2 for r in reach]
    return F.pad(x, (0, odd[1], 0, odd[0])) if any(odd) else x, [r // 2 for r in reach]
