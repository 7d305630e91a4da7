"""ConvBN2d stands where nn.Conv2d, nn.BatchNorm2d and an activation stood, and keeps its input alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import opwright as ow

ACTIVATIONS = {
    "none": lambda z: z,
    "relu": F.relu,
    "leaky_relu": lambda z: F.leaky_relu(z, 0.2),
    "elu": lambda z: F.elu(z, 0.7),
    "silu": F.silu,
    "gelu": F.gelu,
}
SLOPES = {"leaky_relu": 0.2, "elu": 0.7}


class Eager(nn.Module):
    """The layers themselves."""

    def __init__(self, layer: ow.nn.ConvBN2d) -> None:
        super().__init__()
        self.conv, self.bn = copy.deepcopy(layer.conv), copy.deepcopy(layer.bn)
        self.activation = layer.activation

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = self.bn(self.conv(x))
        return ACTIVATIONS[self.activation](y if residual is None else y + residual)  # type: ignore[no-untyped-call, no-any-return]


def layer(**options: Any) -> ow.nn.ConvBN2d:
    """A layer whose statistics and parameters are not what they are at first."""
    torch.manual_seed(0)
    activation = options.get("activation")
    options = {"kernel_size": 3, "padding": 1, "slope": SLOPES.get(activation or "")} | options
    made = ow.nn.ConvBN2d(options.pop("inputs", 4), options.pop("outputs", 6), dtype=torch.float64, **options)
    with torch.no_grad():
        for p in made.bn.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return made


def train(model: nn.Module, x: Tensor, *more: Tensor, steps: int = 2) -> list[Tensor]:
    """What a model returns, its gradients and its buffers, after some steps."""
    given = [t.clone().requires_grad_() for t in (x, *more)]
    for step in range(steps):
        out = model(*given)
        out.backward(torch.linspace(-1 - step, 1, out.numel(), dtype=out.dtype).view_as(out))
    return [out, *(t.grad for t in given), *(p.grad for p in model.parameters()), *model.buffers()]  # type: ignore[misc]


def same(one: list[Tensor], two: list[Tensor]) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


FORMS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "groups": 2, "dilation": 2, "bias": False},
    {"padding": "same", "kernel_size": (2, 4), "activation": "relu"},
    {"padding": "valid", "affine": False, "activation": "silu"},
    {"padding": 2, "padding_mode": "reflect", "momentum": None, "activation": "elu"},
    {"track_running_stats": False, "activation": "gelu"},
    {"groups": 4, "inputs": 4, "outputs": 8, "activation": "leaky_relu", "eps": 0.1},
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_it_trains_as_the_layers_do(form: dict[str, Any]) -> None:
    ours = layer(**form)
    eager = Eager(ours)
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64)
    same(train(ours, x), train(eager, x))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), eager.eval()(x))


@pytest.mark.parametrize("keep", ["input", "output", "all"])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("residual", [False, True])
def test_whatever_it_keeps_the_gradients_are_the_same(keep: Any, activation: str, residual: bool) -> None:
    ours = layer(activation=activation, keep=keep)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    more = [torch.randn(2, 6, 5, 5, dtype=torch.float64)] if residual else []
    eager = Eager(ours)
    same(train(ours, x, *more), train(eager, x, *more))


@pytest.mark.parametrize("keep", ["input", "output", "all"])
def test_a_residual_without_a_gradient_counts_too(keep: Any) -> None:
    ours = layer(activation="relu", keep=keep)
    x, residual = torch.randn(2, 4, 5, 5, dtype=torch.float64), torch.randn(2, 6, 5, 5, dtype=torch.float64)
    eager = Eager(ours)
    same(train(_Fixed(ours, residual), x), train(_Fixed(eager, residual), x))


class _Fixed(nn.Module):
    def __init__(self, model: nn.Module, residual: Tensor) -> None:
        super().__init__()
        self.model, self.residual = model, residual

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, self.residual)  # type: ignore[no-any-return]


def kept(model: nn.Module, *given: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What a call returns, and what it keeps of memory that is neither an argument's nor a parameter's."""
    saved: list[Tensor] = []
    known = {t.untyped_storage().data_ptr() for t in (*given, *model.parameters(), *model.buffers())}

    def keep(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    model(*given)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = model(*given)
    return out, [t for t in saved if t.untyped_storage().data_ptr() not in known]


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_nothing_of_the_size_of_the_output_is_kept(activation: str) -> None:
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    _, new = kept(layer(activation=activation), x)
    assert sum(t.numel() for t in new) == 2 * 6  # mean and variance
    residual = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    out, new = kept(layer(activation=activation), x, residual)
    assert [t.data_ptr() for t in new if t.numel() > 6] == ([out.data_ptr()] if activation == "relu" else [])
    out, new = kept(layer(activation=activation, keep="output"), x)
    used = [out.data_ptr()] if activation in ("none", "leaky_relu") else []  # nothing else can be computed back
    assert [t.data_ptr() for t in new if t.numel() > 6] == used
    out, new = kept(layer(activation=activation, keep="output"), x, residual)
    used = [out.data_ptr()] if activation in ("relu", "leaky_relu", "elu") else []
    assert [t.data_ptr() for t in new if t.numel() > 6] == used
    out, new = kept(layer(activation=activation, keep="all"), x)
    assert sum(t.numel() for t in new) == out.numel() + 2 * 6
    out, new = kept(layer(activation=activation, keep="all"), x, residual)
    assert sum(t.numel() for t in new) == out.numel() * (1 if activation == "none" else 2) + 2 * 6  # as PyTorch's


@pytest.mark.parametrize("keep", ["input", "output", "all"])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_what_is_written_to_afterwards_is_none_of_its_business_unless_it_says_so(keep: Any, activation: str) -> None:
    """To the output where PyTorch's layers let it, and to the residual; with "all" to whatever they let."""
    ours = layer(activation=activation, keep=keep)
    eager = Eager(ours)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    residual = torch.randn(2, 6, 5, 5, dtype=torch.float64)

    def gradients(model: nn.Module, added: bool, written: str) -> list[Tensor] | None:
        given = [t.clone().requires_grad_() for t in (x, residual)]
        more = given[1] * 1
        out = model(given[0], more) if added else model(given[0])
        out.add_(1) if written == "output" else more.mul_(3)
        leaves = [*given, *model.parameters()]
        try:
            found = torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True)
        except RuntimeError:  # modified by an inplace operation
            return None
        return [t for t in found if t is not None]

    says = {  # docs/conv_bn.md, "What is kept"
        (False, "output"): keep == "output" and activation in ("none", "leaky_relu"),
        (True, "output"): keep == "output" and activation in ("leaky_relu", "elu"),
        (True, "residual"): activation in ("silu", "gelu") if keep == "output" else activation not in ("none", "relu"),
    }
    for (added, written), raises in says.items():
        theirs = gradients(eager, added, written)
        if theirs is None:
            continue
        found = gradients(ours, added, written)
        assert (found is None) == (raises and keep != "all"), (added, written)
        if found is not None:
            same(found, theirs)


def test_frozen_statistics_are_constants_while_the_rest_trains() -> None:
    for activation in ("none", "relu"):
        ours = layer(activation=activation)
        eager = Eager(ours)
        for m in (ours, eager):
            m.bn.running_mean.normal_(generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr, operator]
            m.bn.eval()  # type: ignore[union-attr, operator]
        x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
        same(train(ours, x), train(eager, x))
        for m in (ours, eager):
            m.bn.requires_grad_(False)  # type: ignore[union-attr, operator]
        x.requires_grad_()
        for a, b in zip(*([*torch.autograd.grad(m(x).square().sum(), x)] for m in (ours, eager)), strict=True):
            torch.testing.assert_close(a, b)


def test_checkpoints_go_either_way() -> None:
    ours = layer()
    plain = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)).double()
    theirs = {k.replace("conv.", "0.").replace("bn.", "1."): v for k, v in ours.state_dict().items()}
    plain.load_state_dict(theirs)
    assert list(plain.state_dict()) == list(theirs)
    again = ow.nn.ConvBN2d.of(plain[0], plain[1])  # type: ignore[arg-type]
    assert list(again.state_dict()) == list(ours.state_dict())
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(again(x), ours(x))
    ours.conv.load_state_dict(plain[0].state_dict())
    ours.bn.load_state_dict(plain[1].state_dict())


def test_it_folds_into_one_convolution() -> None:
    for form in ({}, {"bias": False, "affine": False}, {"groups": 2, "stride": 2, "padding_mode": "circular"}):
        ours = layer(**form)  # type: ignore[arg-type]
        train(ours, torch.randn(3, 4, 6, 6, dtype=torch.float64))
        x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
        folded = ours.eval().fold()
        assert type(folded) is nn.Conv2d
        torch.testing.assert_close(folded(x), ours(x))
    with pytest.raises(ValueError, match="fold needs running statistics"):
        layer(track_running_stats=False).fold()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_updates_statistics_once(reentrant: bool) -> None:
    ours = layer(activation="relu")
    eager = Eager(ours)
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    checkpoint(ours, x, use_reentrant=reentrant).sum().backward()
    eager(x).sum().backward()
    same(list(ours.buffers()), list(eager.buffers()))
    assert ours.bn.num_batches_tracked == 1


@pytest.mark.parametrize("where", ["nowhere", pytest.param("inside", marks=pytest.mark.slow), "around"])
def test_compiled_it_trains_the_same_and_updates_statistics_once(where: str) -> None:
    class Two(nn.Module):
        def __init__(self, make: Any) -> None:
            super().__init__()
            self.a, self.b = make(layer(activation="silu", outputs=4)), make(layer(activation="relu", outputs=4))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x), x)  # type: ignore[no-any-return]

    ours, eager = Two(lambda m: m), Two(Eager)

    def inside(x: Tensor) -> Any:
        return checkpoint(ours, x, use_reentrant=False) if where == "inside" else ours(x)

    torch._dynamo.reset()
    compiled: Any = torch.compile(inside, backend="aot_eager", fullgraph=True)
    x, y = (torch.randn(2, 4, 5, 5, dtype=torch.float64).mul(1).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    for _ in range(2):
        out = checkpoint(compiled, x, use_reentrant=False) if where == "around" else compiled(x)
        out.square().sum().backward()
        eager(y).square().sum().backward()
    found = [[t.grad, *m.buffers(), *(p.grad for p in m.parameters())] for m, t in ((ours, x), (eager, y))]
    same(*found)  # type: ignore[arg-type]
    assert ours.a.bn.num_batches_tracked == 2


def test_functions_of_it_transform() -> None:
    models = [layer(activation="silu") for _ in range(2)]
    with torch.no_grad():
        for p in models[1].parameters():
            p.mul_(1.5)
    params, buffers = stack_module_state(models)
    base, x = copy.deepcopy(models[0]), torch.randn(3, 4, 5, 5, dtype=torch.float64)

    def loss(params: Any, buffers: Any) -> Tensor:
        return functional_call(base, (params, buffers), (x,)).square().sum()  # type: ignore[no-any-return]

    found = vmap(grad(loss))(params, buffers)
    for i, model in enumerate(models):
        eager = Eager(model)
        eager(x).square().sum().backward()
        for name, p in eager.named_parameters():
            torch.testing.assert_close(found[name][i], p.grad, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(buffers["bn.running_mean"][i], eager.bn.running_mean)


def test_its_second_derivative_is_right() -> None:
    ours = layer(activation="silu", inputs=2, outputs=2)
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    for keep in ("input", "all"):
        ours.keep = keep  # type: ignore[assignment]
        eager = Eager(ours)
        found = []
        for model in (ours, eager):
            (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), [x, *model.parameters()], allow_unused=True))
        for a, b in zip(*found, strict=True):
            a = torch.zeros_like(b) if a is None else a
            torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("residual", [None, torch.bfloat16, torch.float32])
def test_autocast_gives_the_dtypes_that_eager_has(residual: torch.dtype | None) -> None:
    ours = layer(activation="relu").float()
    eager, x = Eager(ours), torch.randn(2, 4, 5, 5)
    more = [] if residual is None else [torch.randn(2, 6, 5, 5).to(residual)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one, two = ours(x, *more), eager(x, *more)
        new = kept(ours, x, *more)[1]
    assert one.dtype == two.dtype
    found = [t for t in new if t.numel() == one.numel() and t.dtype == torch.float32]
    assert len(found) == (residual == torch.float32), "relu keeps its result"
    torch.testing.assert_close(one, two, rtol=0.05, atol=0.05)
    one.float().sum().backward()
    assert ours.conv.weight.grad is not None
    assert ours.conv.weight.grad.dtype == torch.float32


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        layer()(torch.randn(1, 4, 1, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="input must have 4 dimensions, got 3"):
        layer()(torch.randn(4, 5, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="conv_bn: weight must take the 5 channels of x"):
        layer()(torch.randn(2, 5, 5, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="residual must have the shape of the output"):
        layer()(torch.randn(2, 4, 5, 5, dtype=torch.float64), torch.randn(2, 6, 5, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="activation must be None or one of none, relu"):
        layer(activation="tanh")
    with pytest.raises(ValueError, match="keep must be one of input, output, all, got 'nothing'"):
        layer(keep="nothing")
    with pytest.raises(ValueError, match="the batch norm must have the 6 channels of the convolution, got 4"):
        ow.nn.ConvBN2d.of(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(4))
    with pytest.raises(ValueError, match="groups"):
        ow.nn.ConvBN2d(4, 6, 3, groups=3)


def test_an_empty_batch_is_one() -> None:
    ours = layer(activation="relu")
    before = [b.clone() for b in ours.buffers()][:2]
    x = torch.randn(0, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    ours(x).sum().backward()
    assert ours(x).shape == (0, 6, 5, 5)
    same([*ours.buffers()][:2], before)


def test_a_batch_that_nobody_had_anything_of_leaves_statistics_alone() -> None:
    for count in (torch.tensor(0.0), None):
        mean, var, batches = torch.ones(3), torch.ones(3), torch.tensor(4)
        ow.track_statistics(mean, var, batches, torch.full((3,), float("nan")), torch.zeros(3), count, values=0)
        assert torch.equal(mean, torch.ones(3))
        assert torch.equal(var, torch.ones(3))
        assert batches == 5


def test_an_empty_batch_has_gradients_of_zero() -> None:
    gamma = torch.ones(2, requires_grad=True)
    beta = torch.zeros(2, requires_grad=True)
    out = ow.conv_bn(torch.zeros(0, 3, 4, 4), torch.randn(2, 3, 1, 1), gamma=gamma, beta=beta).output
    out.sum().backward()
    assert torch.equal(torch.stack([gamma.grad, beta.grad]), torch.zeros(2, 2))  # type: ignore[list-item]


@pytest.mark.parametrize("keep", ["input", "output", "all"])
def test_what_is_infinite_stays_where_it_is_under_frozen_statistics(keep: Any) -> None:
    """An infinity behind a ReLU has a gradient of its own alone: means of a batch are not in it."""
    torch.manual_seed(0)
    ours = ow.nn.ConvBN2d(2, 2, 1, activation="relu", keep=keep).eval()
    x = torch.randn(1, 2, 3, 3)
    x[0, 0, 0, 0] = float("inf")
    x.requires_grad_()
    (found,) = torch.autograd.grad(ours(x).sum(), x)
    (expected,) = torch.autograd.grad(Eager(ours).eval()(x).sum(), x)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("keep", ["input", "output", "all"])
def test_a_frozen_bias_has_second_derivatives(keep: Any) -> None:
    ours = layer(activation="silu", keep=keep, inputs=2, outputs=2).eval()
    eager = Eager(ours).eval()
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)

    def twice(model: Any) -> tuple[Tensor, ...]:
        bias = model.conv.bias
        (once,) = torch.autograd.grad(model(x).square().sum(), bias, create_graph=True)
        return torch.autograd.grad(once.square().sum(), (bias, x))

    torch.testing.assert_close(twice(ours), twice(eager))


def test_a_group_of_one_has_one_value_no_more_than_nobody() -> None:
    x, weight = torch.randn(1, 2, 1, 1), torch.randn(3, 2, 1, 1)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ow.conv_bn(x, weight, group="0", ranks=1)
