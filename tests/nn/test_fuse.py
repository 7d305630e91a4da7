"""fuse_conv_bn finds chains of convolution and batch norm, and leaves alone what it must."""

from __future__ import annotations

import copy
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import opwright as ow


class Block(nn.Module):
    """A residual block, as torchvision writes it."""

    def __init__(self, inside: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if stride > 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.layers = nn.Sequential(Block(8, 8), Block(8, 16, 2))
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def train(model: nn.Module, steps: int = 3) -> tuple[list[float], list[Tensor]]:
    """Losses on the way, and the state at the end."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(4, 3, 16, 16, generator=generator, dtype=torch.float64)
        target = torch.randint(5, (4,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [*model.state_dict().values()]


def test_a_resnet_trains_to_the_same_numbers() -> None:
    torch.manual_seed(0)
    plain = ResNet().double()
    fused = copy.deepcopy(plain)
    keys = list(plain.state_dict())
    assert ow.nn.fuse_conv_bn(fused) is fused
    found = listed(fused)
    assert len(found.fused) == 6
    assert found.left == {}
    assert list(fused.state_dict()) == keys
    kinds = {n.name() for n in _nodes(fused(torch.randn(2, 3, 16, 16, dtype=torch.float64)))}
    assert not any("BatchNorm" in kind for kind in kinds)
    assert any("ConvBn" in kind for kind in kinds)
    fused.load_state_dict(plain.state_dict())
    one, two = train(plain), train(fused)
    assert one[0] == pytest.approx(two[0], rel=1e-9)
    for a, b in zip(one[1], two[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(plain.eval()(x), fused.eval()(x))


def listed(model: nn.Module) -> ow.nn.Fusion:
    found = model.conv_bn_fusion
    assert isinstance(found, ow.nn.Fusion)
    return found


def _nodes(out: Tensor) -> list[Any]:
    seen, todo = [], [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.append(node)
            todo += [n for n, _ in node.next_functions]
    return seen


def test_a_fused_model_is_copied_and_saved() -> None:
    fused: Any = ow.nn.fuse_conv_bn(ResNet().double())
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    for other in (copy.deepcopy(fused), torch.load(file, weights_only=False)):
        with torch.no_grad():
            other.conv1.weight.zero_()  # of its own
        assert fused.conv1.weight.any()
        assert any("ConvBn" in n.name() for n in _nodes(other(x)))


def chain(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), *more)


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(self.bn(self.conv(x))))  # type: ignore[no-any-return]


class _Looks(_Twice):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.bn(y) + y  # type: ignore[no-any-return]


class _Names(_Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(input=x))  # type: ignore[no-any-return]


class _Asks(_Twice):
    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        return y * 2 if self.training else y  # type: ignore[no-any-return]


def test_what_must_be_left_alone_is_and_is_listed() -> None:
    hooked, parametrized, shared = chain(), chain(), nn.Sequential(chain())
    hooked[1].register_forward_hook(lambda *_: None)
    weight_norm(parametrized[0])
    shared.append(shared[0][0])  # type: ignore[index]
    for model, name, why in (
        (hooked, "0", "1 has hooks"),
        (parametrized, "0", "0 is parametrized"),
        (shared, "0.0", "0 is shared"),
        (_Twice(), "conv", "conv is shared"),
        (_Looks(), "conv", "its output has another use"),
        (_Names(), "conv", "it is called by keyword"),
        (nn.Sequential(nn.LazyConv2d(3, 1), nn.LazyBatchNorm2d()), "0", "0 is a LazyConv2d"),
        (nn.Sequential(_Asks()), "0", "it depends on self.training"),
    ):
        x = torch.randn(2, 3, 4, 4)
        found = listed(ow.nn.fuse_conv_bn(model))
        assert found.fused == []
        assert list(found.left) == [name]
        assert why in found.left[name]
        if model is not shared:
            assert model(x).shape[0] == 2


class _Odd(nn.Module):
    def __init__(self, tail: str) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        self.scale, self.tail = nn.Parameter(torch.randn(3, 1, 1)), tail

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        if self.tail == "broadcast":
            return F.leaky_relu(y + self.scale, 0.3)
        if self.tail == "number":
            return (y + 1.0).relu()  # type: ignore[no-any-return]
        if self.tail == "tanh gelu":
            return F.gelu(y, approximate="tanh")
        if self.tail == "written":
            x = x * 1.0
            y = self.bn(self.conv(x))
            return F.relu(y + self.act(x))  # writes what the convolution has read
        if self.tail == "from the left":
            z = x * 1.0
            z += y
            return F.elu(z, alpha=0.5)
        return F.silu(torch.add(x, y))


@pytest.mark.parametrize("tail", ["broadcast", "number", "tanh gelu", "written", "from the left", "silu"])
def test_odd_chains_compute_the_same(tail: str) -> None:
    torch.manual_seed(0)
    plain = _Odd(tail).double()
    fused = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    if tail == "written":  # PyTorch has no gradient for it either
        with torch.no_grad():
            torch.testing.assert_close(plain(x), fused(x))
        return
    found = [[m(x), *torch.autograd.grad(m(x).square().sum(), list(m.conv.parameters()))] for m in (plain, fused)]  # type: ignore[operator, union-attr]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


class _Adds(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.conv, self.bn, self.in_place = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), in_place

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        if self.in_place:
            y += residual
        else:
            y = y + residual
        return F.relu(y)


@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_added_in_another_dtype_gives_that_of_the_addition(in_place: bool) -> None:
    torch.manual_seed(0)
    plain = _Adds(in_place)
    model = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    assert listed(model).fused == ["conv"]
    x, residual = torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        for given in (residual, residual.bfloat16()):
            one, two = model(x, given), plain(x, given)
            assert one.dtype == two.dtype == (given.dtype if not in_place else torch.bfloat16)
            torch.testing.assert_close(one, two, rtol=0.02, atol=0.02)
    half = ow.nn.fuse_conv_bn(copy.deepcopy(plain)).bfloat16()
    assert half(x.bfloat16(), residual).dtype == (torch.bfloat16 if in_place else torch.float32)


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="fuse_conv_bn: keep must be one of input, output, all, got 'it'"):
        ow.nn.fuse_conv_bn(chain(), keep="it")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"fuse_conv_bn: model must be a torch\.nn\.Module, got int"):
        ow.nn.fuse_conv_bn(3)  # type: ignore[arg-type]


def test_a_model_that_is_fused_again_keeps_what_the_last_call_says() -> None:
    def kept(model: nn.Module) -> int:
        sizes: list[int] = []

        def note(t: Tensor) -> Tensor:
            sizes.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            model(torch.randn(2, 3, 4, 4))
        return sum(sizes)

    model = chain()
    ow.nn.fuse_conv_bn(model)
    first, recomputing = listed(model), kept(model)
    ow.nn.fuse_conv_bn(model, keep="all")
    assert kept(model) > recomputing
    assert listed(model) == first == listed(ow.nn.fuse_conv_bn(model))
    assert kept(model) == recomputing


@pytest.mark.parametrize("given", [None, "images", 3])
def test_what_is_no_tensor_gets_the_error_of_the_convolution(given: Any) -> None:
    with pytest.raises(TypeError, match="conv2d"):
        ow.nn.fuse_conv_bn(chain())(given)


class _Child(nn.Module):
    def __init__(self, activation: Any, adds: bool) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.activation, self.adds = activation, adds

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        return self.activation(y + x if self.adds else y)  # type: ignore[no-any-return]


class _Parent(nn.Module):
    """Writes to what its child returns, which no trace of the child sees."""

    def __init__(self, child: nn.Module, write: Any) -> None:
        super().__init__()
        self.child, self.write = child, write

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.child(x), x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("keep", ["input", "all"])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    "activation", [nn.Identity(), nn.ReLU(), nn.LeakyReLU(0.1), nn.ELU(), nn.SiLU(), nn.GELU()], ids=str
)
def test_a_parent_may_write_to_what_a_fused_child_returns(activation: nn.Module, adds: bool, keep: Any) -> None:
    for write in (Tensor.add_, lambda y, x: F.relu(y, inplace=True), lambda y, x: F.dropout(y, 0.5, inplace=True)):
        torch.manual_seed(0)
        plain = _Parent(_Child(activation, adds), write).double()
        fused = ow.nn.fuse_conv_bn(copy.deepcopy(plain), keep=keep)
        assert listed(fused).fused == ["child.conv"]
        x = torch.randn(2, 3, 4, 4, dtype=torch.float64)

        def gradients(model: nn.Module, x: Tensor = x) -> tuple[Tensor, ...]:
            torch.manual_seed(1)
            return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

        if isinstance(activation, nn.ReLU):  # keeps what it returns
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                gradients(plain)
            continue
        for a, b in zip(gradients(fused), gradients(plain), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


class Scaled(Block):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:  # another scale is another trace
        return super().forward(x) * scale


def test_models_are_fused_and_called_on_several_threads_at_once() -> None:
    """torch.fx patches torch.nn.Module for all threads while it traces."""
    shared: Any = ow.nn.fuse_conv_bn(nn.Sequential(Scaled(4, 4)).eval())
    x = torch.randn(2, 4, 4, 4)
    right = [shared[0](x, float(k)).clone() for k in range(4)]
    again: Any = ow.nn.fuse_conv_bn(copy.deepcopy(shared))
    methods, interval = (nn.Module.__call__, nn.Module.__getattr__), sys.getswitchinterval()

    def work(k: int) -> None:
        for _ in range(4):
            model: Any = nn.Sequential(Scaled(4, 4), Scaled(4, 4))
            ow.nn.fuse_conv_bn(model)
            assert len(model.conv_bn_fusion.fused) == 4
            model(x).sum().backward()
            assert torch.equal(again[0](x, float(k)), right[k])

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert methods == (nn.Module.__call__, nn.Module.__getattr__)
