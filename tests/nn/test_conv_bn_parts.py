"""ConvBN2d computes what its two parts compute: also where they have hooks, are traced or have odd values."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import opwright as ow


class _Eager(nn.Module):
    def __init__(self, conv: nn.Conv2d, bn: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn = conv, bn

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def _ours(eager: _Eager) -> ow.nn.ConvBN2d:
    copied = copy.deepcopy(eager)
    return ow.nn.ConvBN2d.of(copied.conv, copied.bn, "relu")  # type: ignore[arg-type]


def _doubles(module: nn.Module, given: Any, out: Tensor) -> Tensor:
    return out * 2


def _trained(model: nn.Module, steps: int = 3) -> list[Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(2, 3, 5, 5, requires_grad=True)
        optimizer.zero_grad()
        out = model(x)
        out.square().sum().backward()
        optimizer.step()
    return [out, *(t for t in (x.grad, *model.parameters(), *model.buffers()) if t is not None)]


HOOKS: list[Callable[[Any], Any]] = [
    lambda m: prune.l1_unstructured(m.conv, "weight", 0.5),
    lambda m: prune.random_unstructured(m.bn, "weight", 0.5),
    lambda m: spectral_norm(m.conv),
    lambda m: weight_norm(m.conv),
    lambda m: parametrizations.spectral_norm(m.conv),
    lambda m: m.conv.register_forward_hook(_doubles),
    lambda m: m.bn.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    lambda m: m.conv.register_full_backward_hook(lambda module, grads, given: (grads[0] * 3,)),
]


@pytest.mark.parametrize("hook", HOOKS, ids=range(len(HOOKS)))
def test_parts_with_hooks_do_what_their_hooks_do(hook: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = []
    for ours in (False, True):
        torch.manual_seed(0)
        model: Any = _Eager(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        model = ow.nn.ConvBN2d.of(model.conv, model.bn, "relu") if ours else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            hook(model)
        models.append(model)
    for one, two in zip(*map(_trained, models), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_statistics_are_not_shared_around_a_hook() -> None:
    layer = ow.nn.ConvBN2d(3, 4, 1, process_group=object())
    layer.conv.register_forward_hook(_doubles)
    with pytest.raises(RuntimeError, match="process_group cannot be shared by parts that have hooks"):
        layer(torch.randn(2, 3, 4, 4))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("training", [True, False])
def test_a_traced_layer_works_for_another_batch(training: bool) -> None:
    torch.manual_seed(0)
    eager = _Eager(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train(training)
    ours = _ours(eager).train(training)
    traced = torch.jit.trace(ours, torch.randn(2, 3, 5, 5), check_trace=False)  # type: ignore[no-untyped-call]
    ours.load_state_dict(eager.state_dict())
    for shape in ((2, 3, 5, 5), (4, 3, 7, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(traced(x), eager(x), rtol=1e-4, atol=1e-5)
    for one, two in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("part", [nn.InstanceNorm2d(4), nn.BatchNorm3d(4), nn.GroupNorm(2, 4), nn.Identity()], ids=str)
def test_another_norm_is_refused_by_name(part: nn.Module) -> None:
    said = f"bn must be a torch.nn.BatchNorm2d or torch.nn.SyncBatchNorm, got {type(part).__name__}"
    with pytest.raises(TypeError, match=said):
        ow.nn.ConvBN2d.of(nn.Conv2d(3, 4, 1), part)  # type: ignore[arg-type]


class _Scaled(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def test_another_convolution_is_refused_by_name() -> None:
    for part in (nn.Conv1d(3, 4, 1), nn.ConvTranspose2d(3, 4, 1), nn.Conv3d(3, 4, 1)):
        with pytest.raises(TypeError, match=f"conv must be a torch.nn.Conv2d, got {type(part).__name__}"):
            ow.nn.ConvBN2d.of(part, nn.BatchNorm2d(4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="_Scaled has its own forward"):
        ow.nn.ConvBN2d.of(_Scaled(3, 4, 1), nn.BatchNorm2d(4))


def test_shapes_are_told_on_the_meta_device() -> None:
    layer = ow.nn.ConvBN2d(3, 4, 3, device="meta", activation="relu")
    assert layer(torch.empty(2, 3, 5, 5, device="meta")).shape == (2, 4, 3, 3)


@pytest.mark.parametrize("training", [True, False])
def test_torch_fx_records_the_parts(training: bool) -> None:
    layer = ow.nn.ConvBN2d(3, 4, 3, activation="leaky_relu", slope=0.2).train(training)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer, nn.ReLU()))
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["0.conv", "0.bn", "1"]
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(traced(x), layer(x).relu())


def test_a_weight_of_another_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="conv_bn: weight must be float64, as x is, got float32"):
        ow.nn.ConvBN2d(3, 4, 1)(torch.randn(2, 3, 4, 4, dtype=torch.float64))


@pytest.mark.parametrize("weight", [(3, 0, 1, 1), (0, 3, 1, 1), (2, 3, 0, 1)])
def test_weights_without_entries_are_refused(weight: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="conv_bn: weight must have entries"):
        ow.conv_bn(torch.ones(2, weight[1], 4, 4), torch.ones(weight))


def test_an_eps_that_is_not_positive_is_refused_as_pytorch_does() -> None:
    x, weight, one = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 1, 1), torch.ones(2)
    for eps in (0.0, -1e-5, float("nan")):
        with pytest.raises(ValueError, match="conv_bn: eps must be positive, got"):
            ow.conv_bn(x, weight, eps=eps)
    with pytest.raises(ValueError, match="conv_bn: eps must be positive, got -"):
        ow.conv_bn(x, weight, running_mean=one, running_var=one, eps=-1e-5)
    found = ow.conv_bn(x, weight, running_mean=one, running_var=one, eps=0.0).output
    torch.testing.assert_close(found, F.batch_norm(F.conv2d(x, weight), one, one, eps=0.0))


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_infinite_statistics_stay_what_pytorch_makes_of_them(momentum: float | None) -> None:
    layer = ow.nn.ConvBN2d(3, 4, 1, momentum=momentum)
    eager = nn.Sequential(copy.deepcopy(layer.conv), copy.deepcopy(layer.bn))
    for model in (layer, eager):
        mean, var, _ = model.buffers()
        mean[0], var[1], var[2] = float("-inf"), float("inf"), float("nan")
    x = torch.randn(2, 3, 4, 4)
    layer(x), eager(x)
    for one, two in zip(layer.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, two, equal_nan=True)


def test_a_gradient_reads_nothing_beyond_what_was_saved() -> None:
    """Its operator can be called by hand, and by who changed what was saved."""
    x, weight, one = torch.randn(2, 3, 4, 4), torch.randn(5, 3, 1, 1), torch.ones(5)
    out = torch.randn(2, 5, 4, 4)
    run = torch.ops.opwright.conv_bn_backward
    assert run(out, None, None, None, x, weight, out, one, one, None, None)[0].shape == x.shape
    cut = out[:, :, :3]
    short = {"grad_output": cut, "mean": one[:2], "var": one[:2], "output": cut, "residual": out[:, :2]}
    for name, wrong in short.items():
        given = {"grad_output": out, "mean": one, "var": one, "output": out, "residual": None} | {name: wrong}
        grad, mean, var, saved, residual = given.values()
        keep = {"keep_output": name == "output", "activation": "silu" if name == "residual" else "relu"}
        with pytest.raises((RuntimeError, ValueError)):
            run(grad, None, None, None, x, weight, saved, mean, var, None, None, residual=residual, **keep)
    for statistics in ((None, one), (one, None), (None, None)):
        with pytest.raises((RuntimeError, AssertionError)):
            run(out, None, None, None, x, weight, out, *statistics, None, None)
    for number in (None, torch.ones(1, 1), torch.ones((), dtype=torch.float64)):
        with pytest.raises((RuntimeError, AssertionError, ValueError, LookupError)):
            run(out, None, None, None, x, weight, out, one, one, number, None, group="nobody's")
