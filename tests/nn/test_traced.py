"""A fused forward is what the forward itself would do: what a trace does not tell is left alone or noticed."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import weight_norm as old_weight_norm

import opwright as ow
from opwright.nn import fuse
from tests.nn.forwards import KEPT, LEFT, Body


@pytest.mark.parametrize("kind", LEFT)
def test_what_a_trace_does_not_tell_is_left_alone(kind: type[Body]) -> None:
    plain = kind()
    before = dict(plain.__dict__)
    model = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    found: Any = model.conv_bn_fusion
    assert found.fused == []
    assert [why for why in found.left.values() if LEFT[kind] in why], found
    assert type(model) is kind
    assert {n: v for n, v in model.__dict__.items() if n in ("count", "seen", "scale", "last")} == {
        n: v for n, v in before.items() if n in ("count", "seen", "scale", "last")
    }
    assert not model.get_buffer("calls").any()
    KEPT.clear()


def test_a_forward_that_was_set_for_a_module_is_its_forward() -> None:
    model = Body()
    model.forward = lambda x: x + 1  # type: ignore[method-assign]
    found: Any = ow.nn.fuse_conv_bn(model).conv_bn_fusion
    assert found.fused == []
    assert found.left == {"": "its forward was set for this module alone"}
    assert model(torch.ones(1)) == 2


class _Optional(Body):
    def forward(self, x: Tensor, mask: Tensor | None = None, *, twice: bool = False) -> Tensor:
        y = self.bn(self.conv(x))
        y = y if mask is None else y * mask
        return y * self.scale if twice else y  # type: ignore[no-any-return]


def _same(model: nn.Module, plain: nn.Module, *args: Any, **kwargs: Any) -> None:
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(*args, **kwargs), plain(*args, **kwargs), rtol=1e-9, atol=1e-9)


def fused(model: nn.Module, x: Tensor, *args: Any) -> bool:
    """Whether a call runs the fused operator."""
    node, kinds = model(x, *args).grad_fn, set()
    while node is not None:
        kinds.add(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return any("ConvBn" in kind for kind in kinds)


def test_each_kind_of_call_has_a_trace_of_its_own() -> None:
    torch.manual_seed(0)
    plain = _Optional().double()
    model: Any = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    assert model.conv_bn_fusion.fused == ["conv"]
    x, mask = torch.randn(2, 3, 4, 4).double(), torch.randn(4, 4).double()
    for _ in range(2):
        _same(model, plain, x)
        _same(model, plain, x, mask)
        _same(model, plain, x=x, mask=mask, twice=True)
        _same(model, plain, x, None, twice=True)
    assert fused(model, x, mask)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        model()


def _hook(model: Any) -> None:
    model.conv.register_forward_hook(lambda m, args, out: out * 0)


def _pre_hook(model: Any) -> None:
    model.bn.register_forward_pre_hook(lambda m, args: (args[0] + torch.arange(4.0, dtype=torch.float64),))


def _normed(model: Any) -> None:
    old_weight_norm(model.conv)
    with torch.no_grad():
        model.conv.weight_g.mul_(3), model.conv.weight_v.add_(0.5)


def _own_forward(model: Any) -> None:
    model.conv.forward = lambda x: x * 3


def _own_convolution(model: Any) -> None:
    model.conv._conv_forward = lambda x, weight, bias: x * 3


def _other_act(model: Any) -> None:
    model.act = nn.Tanh()


def _other_norm(model: Any) -> None:
    model.bn = nn.InstanceNorm2d(3, affine=True, track_running_stats=True).double()


def _other_conv(model: Any) -> None:
    model.conv = nn.Conv2d(3, 3, 3).double()


def _other_scale(model: Any) -> None:
    model.scale = 5.0


def _other_slope(model: Any) -> None:
    model.act.negative_slope = 0.5


def _own_in_place_of_the_class(model: Any) -> None:
    model.usual = 3.0


def _own_method(model: Any) -> None:
    model.chain = lambda x: x * 3


class _Scales(Body):
    usual = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.LeakyReLU(0.1)  # type: ignore[assignment]

    def chain(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.chain(x) * self.usual


CHANGES = [
    _hook, _pre_hook, _normed, _own_forward, _own_convolution, _other_act, _other_norm, _other_conv, _other_scale,
    _other_slope, _own_in_place_of_the_class, _own_method
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore:`?torch.nn.utils.weight_norm")
def test_what_changes_after_fusing_is_noticed(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    plain = _Scales().double()
    model = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    x = torch.randn(2, 3, 4, 4).double()
    _same(model, plain, x)
    assert fused(model, x)
    for each in (plain, model):
        change(each)
    _same(model, plain, x)
    _same(model, plain, x)


class _Later(_Scales):
    pass


@pytest.mark.parametrize(("name", "value"), [("usual", 2.0), ("chain", lambda self, x: x), ("forward", Body.forward)])
def test_what_changes_in_the_class_is_noticed(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain = _Later().double()
    model = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    x = torch.randn(2, 3, 4, 4).double()
    _same(model, plain, x)
    monkeypatch.setattr(_Later, name, value, raising=False)
    _same(model, plain, x)


def test_what_nobody_changes_is_traced_once() -> None:
    model: Any = ow.nn.fuse_conv_bn(_Scales())
    for _ in range(3):
        model(torch.randn(2, 3, 4, 4))
    assert model.forward.built == 0


@pytest.mark.parametrize("change", CHANGES[:5])
@pytest.mark.filterwarnings("ignore:`?torch.nn.utils.weight_norm")
def test_what_is_changed_before_is_left_alone(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    plain, model = _Scales().double(), _Scales().double()
    model.load_state_dict(plain.state_dict())
    for each in (plain, model):
        change(each)
    found: Any = ow.nn.fuse_conv_bn(model).conv_bn_fusion
    assert found.fused == []
    assert list(found.left) == ["conv"]
    _same(model, plain, torch.randn(2, 3, 4, 4).double())


class _Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(2))
        self.norms = nn.ModuleDict({"a": nn.BatchNorm2d(3), "b": nn.BatchNorm2d(3)})

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms.values(), strict=True):
            x = F.relu(norm(conv(x)))
        return x


def test_modules_in_lists_are_found() -> None:
    torch.manual_seed(0)
    plain = _Lists().double()
    model: Any = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    assert model.conv_bn_fusion == ow.nn.Fusion(["convs.0", "convs.1"], {})
    _same(model, plain, torch.randn(2, 3, 4, 4).double())
    model.norms["b"] = nn.BatchNorm2d(3).double().eval()
    plain.norms["b"] = copy.deepcopy(model.norms["b"])
    _same(model, plain, torch.randn(2, 3, 4, 4).double())


def test_a_module_that_is_appended_is_called() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).double()
    model: Any = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    for m in (model, plain):
        m.append(nn.Tanh())
    _same(model, plain, torch.randn(2, 3, 4, 4).double())


def test_hooks_for_all_modules_see_all_modules() -> None:
    model = ow.nn.fuse_conv_bn(Body())
    seen: list[str] = []

    def note(module: nn.Module, *_: Any) -> None:
        seen.append(type(module).__name__)

    handle: Any = nn.modules.module.register_module_forward_hook(note)
    try:
        model(torch.randn(2, 3, 4, 4))
    finally:
        handle.remove()
    assert seen == ["Conv2d", "BatchNorm2d", "ReLU", "Body"]
    assert fused(model, torch.randn(2, 3, 4, 4))


def test_what_changes_in_each_call_is_traced_some_times_only() -> None:
    plain = _Scales().double()
    model: Any = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    x = torch.randn(2, 3, 4, 4).double()
    for n in range(fuse.MOST_PLANS):
        model.scale = plain.scale = n / 2
        _same(model, plain, x)
    model.scale = plain.scale = -1.0
    with pytest.warns(UserWarning, match="_Scales is called without fused chains from now on"):
        _same(model, plain, x)
    assert not fused(model, x)


class _ThenWritten(Body):
    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation, self.six = activation, nn.ReLU6(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        if self.activation == "none":
            return self.six(y)  # type: ignore[no-any-return]
        z = x * 1.0
        y = F.leaky_relu(y + z, 0.1) if self.activation == "leaky_relu" else F.silu(y + z)
        return y.mul_(2) if self.activation == "leaky_relu" else y + z.mul_(2)


@pytest.mark.parametrize("keep", ["input", "output", "all"])
@pytest.mark.parametrize("activation", ["none", "leaky_relu", "silu"])
def test_what_the_model_writes_to_is_not_what_is_kept(activation: str, keep: Any) -> None:
    torch.manual_seed(0)
    plain = _ThenWritten(activation).double()
    model: Any = ow.nn.fuse_conv_bn(copy.deepcopy(plain), keep=keep)
    assert model.conv_bn_fusion.fused == ["conv"]
    x = torch.randn(2, 3, 4, 4).double()
    grads = []
    for m in (plain, model):
        m(x * 1).square().sum().backward()
        grads.append([p.grad for p in m.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


class _WrittenAsAView(Body):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.beside = form, nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        if self.form == "view of the output":
            y.view(-1).add_(1)
            return y  # type: ignore[no-any-return]
        if self.form == "slice of the output":
            y[:, :2].add_(1.0)
            return y  # type: ignore[no-any-return]
        r = self.beside(x)
        if self.form == "view of the residual":
            y = F.silu(y + r)
            r.flatten().add_(1)
        elif self.form == "residual that is a view":
            y = F.silu(y + r[:, :])
            r.mul_(2)
        else:
            y = F.leaky_relu(y + r, 0.2)
            y.flatten(1).add_(1)
        return y + r  # type: ignore[no-any-return]


FORMS = [
    "view of the output", "slice of the output", "view of the residual", "residual that is a view",
    "view of an activation"
]  # fmt: skip


@pytest.mark.parametrize("keep", ["input", "output", "all"])
@pytest.mark.parametrize("form", FORMS)
def test_what_the_model_writes_to_through_a_view_is_not_kept_either(form: str, keep: Any) -> None:
    torch.manual_seed(0)
    plain = _WrittenAsAView(form).double()
    model = ow.nn.fuse_conv_bn(copy.deepcopy(plain), keep=keep)
    x = torch.randn(2, 3, 4, 4).double()
    grads = []
    for m in (plain, model):
        m(x).square().sum().backward()
        grads.append([p.grad for p in m.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_a_fused_model_compiles_whole_and_is_exported() -> None:
    torch.manual_seed(0)
    plain = _Optional().double().eval()
    model = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    x = torch.randn(2, 3, 4, 4).double()
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), plain(x), rtol=1e-9, atol=1e-9)
    for strict in (True, False):
        exported = torch.export.export(model, (x,), strict=strict)
        torch.testing.assert_close(exported.module()(x), plain(x), rtol=1e-9, atol=1e-9)
        assert any("conv_bn" in str(node.target) for node in exported.graph.nodes)


class _Writes(Body):
    def forward(self, x: Tensor) -> Tensor:
        x += 1
        x *= 2
        return super().forward(x)


def test_what_a_forward_writes_to_in_place_is_written_to() -> None:
    plain = _Writes().double()
    model: Any = ow.nn.fuse_conv_bn(copy.deepcopy(plain))
    assert model.conv_bn_fusion.fused == ["conv"]
    one, two = (torch.zeros(2, 3, 4, 4).double() for _ in range(2))
    torch.testing.assert_close(model(one), plain(two))
    assert (one == 2).all()
    assert (two == 2).all()


class _Cycles(Body):
    def forward(self, x: Tensor) -> Tensor:
        def deeper(y: Tensor, steps: int) -> Tensor:
            return y if steps == 0 else deeper(y + x, steps - 1)

        return deeper(super().forward(x), 3)


def test_a_cycle_in_a_forward_does_not_make_all_objects_be_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    collect = gc.collect

    def note(generation: int = 2) -> int:
        collected.append(generation)
        return collect(generation)

    monkeypatch.setattr(gc, "collect", note)
    gc.disable()  # which of its own accord makes objects old
    try:
        model: Any = ow.nn.fuse_conv_bn(_Cycles())
    finally:
        gc.enable()
    assert model.conv_bn_fusion.fused == ["conv"]
    assert collected
    assert 2 not in collected
