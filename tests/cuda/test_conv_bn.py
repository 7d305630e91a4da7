"""conv_bn on the GPU gives what PyTorch's layers give in float64, in both layouts, whatever it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import opwright as ow
from opwright.ops.conv_bn import settings
from tests.cuda import FLOATS, needs_gpu

pytestmark = needs_gpu
TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}
ACTIVATIONS: dict[str, Any] = {
    "none": lambda z: z,
    "relu": F.relu,
    "leaky_relu": lambda z: F.leaky_relu(z, 0.3),
    "elu": lambda z: F.elu(z, 0.3),
    "silu": F.silu,
    "gelu": F.gelu,
}
FORMS: list[dict[str, Any]] = [
    {},
    {"fixed": True},
    {"groups": 4, "stride": 2, "inside": 4, "out": 12, "size": 7},
    {"kernel": 1, "inside": 5, "out": 7, "size": 5},  # nothing is a multiple of anything
    {"kernel": 1, "inside": 3, "out": 50, "size": 5},  # single elements, more channels than a warp has threads
]
KEPT = [
    ("none", False, "input"),
    ("none", True, "input"),
    ("relu", False, "input"),
    ("relu", True, "input"),
    ("relu", True, "mask"),
    ("leaky_relu", False, "output"),
    ("none", False, "output"),
    ("leaky_relu", True, "mask"),
    ("elu", True, "mask"),
    ("elu", False, "input"),
    ("silu", True, "input"),
    ("gelu", True, "all"),
    ("relu", False, "all"),
]


@pytest.fixture(autouse=True)
def _exact() -> Any:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True):
        yield


def compare(
    dtype: torch.dtype,
    last: bool,
    activation: str,
    residual: bool,
    keep: str,
    hard: bool = False,
    op: Any = ow.conv_bn,
    device: str = "cuda",
    **form: Any,
) -> None:
    inside, out, size = form.get("inside", 8), form.get("out", 16), form.get("size", 9)
    kernel, groups, stride, fixed = (
        form.get(k, d) for k, d in (("kernel", 3), ("groups", 1), ("stride", 1), ("fixed", False))
    )
    generator = torch.Generator().manual_seed(0)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    def draw(*shape: int, dtype: torch.dtype = dtype, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale + shift).to(dtype).double()

    x, weight, bias = (
        draw(4, inside, size, size),
        draw(out, inside // groups, kernel, kernel, scale=0.2),
        draw(out, dtype=wide),
    )
    gamma, beta = draw(out, dtype=wide, scale=0.3, shift=1.2), draw(out, dtype=wide)
    if hard:  # nothing of these channels can be computed back
        gamma[0], gamma[1], gamma[out - 1], beta[2] = 0, 1e-5, 0, 300
    mean, var = (draw(out, dtype=wide), draw(out, dtype=wide).abs() + 0.5) if fixed else (None, None)
    given = [t.requires_grad_() for t in (x, weight, bias, gamma, beta)]
    y = F.conv2d(x, weight, bias, stride, kernel // 2, 1, groups)
    z = F.batch_norm(y, mean, var, gamma, beta, not fixed)
    if residual:
        given.append(draw(*y.shape).requires_grad_())
        z = z + given[-1]
    expected = ACTIVATIONS[activation](z)
    grad = draw(*y.shape)
    if activation in ("relu", "leaky_relu", "elu"):
        grad = torch.where(z.detach().abs() < 0.12, torch.zeros_like(grad), grad)  # at a kink rounding decides
    wanted = [expected, *torch.autograd.grad(expected, given, grad)]
    layout = torch.channels_last if last else torch.contiguous_format

    def place(t: Tensor) -> Tensor:
        if t.dim() == 4:
            return t.detach().to(device, dtype).contiguous(memory_format=layout).requires_grad_()
        return t.detach().to(device, wide).requires_grad_()

    ours = [place(t) for t in given]
    at = [None if t is None else place(t).detach() for t in (mean, var)]
    found = op(
        *ours[:5],
        ours[5] if residual else None,
        *at,
        stride=[stride] * 2,
        padding=[kernel // 2] * 2,
        groups=groups,
        activation=activation,
        slope=0.3,
        keep_residual=keep != "mask",
        keep_output=keep in ("mask", "output"),
        keep_convolution=keep == "all",
    )
    got = [found.output, *torch.autograd.grad(found.output, ours, place(grad).detach())]
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if i == 3 and not fixed:
            continue  # the bias has no gradient but rounding
        error = ((a.double().cpu() - b).abs().max() / b.abs().max().clamp(min=1e-2)).item()
        assert error < TOLERANCE[dtype], f"result {i} is off by {error:.2g}"
    if not fixed:
        torch.testing.assert_close(
            found.mean.double().cpu(), y.mean((0, 2, 3)) - bias, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels_last"])
def test_it_is_right_in_every_form(dtype: torch.dtype, last: bool) -> None:
    for activation, residual, keep in KEPT:
        for form in FORMS:
            compare(dtype, last, activation, residual, keep, **form)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels_last"])
def test_channels_that_cannot_be_computed_back_are_computed_again(dtype: torch.dtype, last: bool) -> None:
    for activation in ("none", "leaky_relu"):
        compare(dtype, last, activation, False, "output", hard=True, groups=2, stride=2, out=24)


def test_it_is_the_same_each_time_and_can_be_captured() -> None:
    layer = ow.nn.ConvBN2d(16, 32, 3, padding=1, activation="relu").cuda()
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(8, 16, 14, 14, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()

    def step() -> list[Tensor]:
        out = layer(x)
        grads = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        return [out.detach(), *grads]  # a graph that lives on belongs to the stream it was made on

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first, *others = [step() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(side)
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert torch.equal(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    batches = layer.bn.num_batches_tracked.item()  # type: ignore[union-attr]
    graph.replay()
    assert layer.bn.num_batches_tracked == batches + 1
    for a, b in zip(first, captured, strict=True):
        assert torch.equal(a, b)


def test_what_it_keeps_is_its_input() -> None:
    def kept(model: Any, x: Tensor) -> int:
        model(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        out = model(x)
        return int(torch.cuda.memory_stats()["requested_bytes.all.current"] - before - out.numel() * out.element_size())

    x = torch.randn(16, 32, 28, 28, device="cuda", requires_grad=True)
    layer = ow.nn.ConvBN2d(32, 32, 3, padding=1, activation="relu").cuda()
    assert kept(layer, x) <= 4096
    layer.keep = "all"
    assert x.numel() * 4 <= kept(layer, x) <= x.numel() * 4 + 4096


@contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Of convolutions, where every test here begins without it, and with deterministic algorithms alone."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = not on, on
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False


def rounded_by_tf32() -> tuple[Tensor, Tensor]:
    """An input and a weight for which cuDNN takes TF32 where it may: not all have an algorithm for it."""
    for batch, channels, size, layout in (
        (64, 64, 56, torch.contiguous_format),
        (16, 256, 28, torch.channels_last),
        (32, 128, 28, torch.contiguous_format),
        (16, 64, 32, torch.channels_last),
    ):
        x = torch.randn(batch, channels, size, size, device="cuda").contiguous(memory_format=layout)
        weight = torch.randn(channels, channels, 3, 3, device="cuda").contiguous(memory_format=layout)
        with tf32(True):
            coarse = F.conv2d(x, weight, padding=1)
        with tf32(False):
            if not torch.equal(coarse, F.conv2d(x, weight, padding=1)):
                return x, weight
    raise AssertionError("cuDNN takes TF32 for none of these, so that this test says nothing")


@pytest.mark.parametrize("keep", ["input", "output"])
@pytest.mark.parametrize("first", [False, True])
def test_the_convolution_is_computed_again_as_it_was(keep: Any, first: bool) -> None:
    torch.manual_seed(0)
    x, weight = rounded_by_tf32()
    layer = ow.nn.ConvBN2d(weight.shape[1], weight.shape[0], 3, padding=1, activation="relu", keep=keep).cuda()
    with torch.no_grad():
        layer.conv.weight = torch.nn.Parameter(weight)
    grad = torch.randn_like(x)

    def of_gamma(forward: bool, backward: bool) -> Tensor:
        """The gradient of γ, which reads the convolution that is computed again and no other."""
        with tf32(forward):
            out = layer(x)
        with tf32(backward):
            return torch.autograd.grad(out, layer.bn.weight, grad)[0]

    assert torch.equal(of_gamma(first, not first), of_gamma(first, first))
    assert not torch.equal(of_gamma(True, True), of_gamma(False, False))  # else this says nothing


def test_there_may_be_any_number_of_channels() -> None:
    x = torch.randn(2, 1, 2, 2, device="cuda", requires_grad=True)
    weight = torch.randn(70_000, 1, 1, 1, device="cuda", requires_grad=True)
    with torch.backends.cudnn.flags(enabled=False):
        for layout in (torch.contiguous_format, torch.channels_last):
            found = ow.conv_bn(x.contiguous(memory_format=layout), weight, activation="silu").output
            expected = F.silu(F.batch_norm(F.conv2d(x, weight), None, None, training=True))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            one, two = (torch.autograd.grad(out.square().sum(), weight)[0] for out in (found, expected))
            torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_group_is_not_waited_for(tmp_path: Any, compiled: bool) -> None:
    """NCCL on one GPU is a group of one: nobody on the host waits for it, forward or backward."""
    from torch import distributed

    store = distributed.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    distributed.init_process_group("nccl", rank=0, world_size=1, store=store, device_id=torch.device("cuda", 0))
    try:
        torch.manual_seed(0)
        alone = ow.nn.ConvBN2d(8, 16, 3, padding=1, activation="relu").cuda()
        shared = ow.nn.ConvBN2d.of(alone.conv, alone.bn, "relu", process_group=distributed.group.WORLD)
        call: Any = torch.compile(shared, backend="aot_eager", fullgraph=True) if compiled else shared
        x = torch.randn(4, 8, 9, 9, device="cuda", requires_grad=True)
        grad = torch.randn(4, 16, 9, 9, device="cuda")
        torch.autograd.grad(call(x), [x, *shared.parameters()], grad)
        try:
            torch.cuda.set_sync_debug_mode("error")
            found = torch.autograd.grad(call(x), [x, *shared.parameters()], grad)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for a, b in zip(found, torch.autograd.grad(alone(x), [x, *alone.parameters()], grad), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    finally:
        distributed.destroy_process_group()


def digits_of_a_far_mean(op: Any, device: str, layout: torch.memory_format, side: int, channels: int) -> None:
    """The mean is as exact as float32 can be, and gradients lose no more than that costs."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(8, channels, side, side, generator=generator) + 1e4).contiguous(memory_format=layout).to(device)
    gamma, beta = torch.rand(channels, generator=generator).to(device), torch.zeros(channels, device=device)
    leaves = [x.requires_grad_(), gamma.requires_grad_(), beta.requires_grad_()]
    grad = torch.randn(x.shape, generator=generator).contiguous(memory_format=layout).to(device)
    eye = torch.eye(channels, device=device)[:, :, None, None].contiguous()
    found = op(x, eye, gamma=gamma, beta=beta)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    exact = F.batch_norm(wide[0], None, None, wide[1], wide[2], training=True)
    mean, var = wide[0].mean((0, 2, 3)), wide[0].var((0, 2, 3), unbiased=False)
    unit = 2.0**-10  # of float32 at 10⁴
    assert (found.mean.double() - mean).abs().max() < 0.51 * unit
    torch.testing.assert_close(found.var.double(), var, rtol=1e-5, atol=0)
    got = torch.autograd.grad(found.output, leaves, grad)
    wanted = torch.autograd.grad(exact, wide, grad.double())
    sums = grad.double().sum((0, 2, 3)).abs().max()
    errors = [(a.double() - b).abs().max() for a, b in zip(got, wanted, strict=True)]
    assert errors[1] < 0.6 * unit * sums + 1e-4 * wanted[1].abs().max()
    assert errors[0] < 2e-3
    assert errors[2] < 1e-3


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("side", [14, 9], ids=["one launch", "three"])
def test_a_mean_far_from_zero_costs_no_digits(layout: torch.memory_format, side: int) -> None:
    digits_of_a_far_mean(ow.conv_bn, "cuda", layout, side, 16 if side == 14 else 15)


def test_launches_whose_blocks_wait_for_each_other_get_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """On six streams at once, beside products that fill the GPU, and within graphs that are replayed together."""
    side = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    shapes = [(64, 64, 56), (8, 128, 28), (2, 24, 7), (16, 512, 14), (1, 2048, 4), (4, 40, 33)]
    layers: list[Any] = []
    inputs: list[Tensor] = []
    for k, (batch, channels, size) in enumerate(shapes):
        layout = torch.channels_last if k % 2 == 0 else torch.contiguous_format
        layer = ow.nn.ConvBN2d(channels, channels, 1, bias=False, activation="relu").to("cuda", torch.bfloat16)
        layer.bn.float()
        layers.append(layer.to(memory_format=layout))  # type: ignore[call-overload]
        x = torch.randn(batch, channels, size, size, device="cuda", dtype=torch.bfloat16)
        inputs.append(x.contiguous(memory_format=layout).requires_grad_())

    def once(k: int) -> list[Tensor]:
        out = layers[k](inputs[k])
        grads = torch.autograd.grad(out, [inputs[k], *layers[k].parameters()], torch.ones_like(out))
        return [out.detach(), *grads]  # a graph that lives on belongs to the stream it was made on

    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    expected = [[t.clone() for t in once(k)] for k in range(len(shapes))]
    streams = [torch.cuda.Stream() for _ in shapes]
    torch.cuda.synchronize()

    def several(k: int) -> list[Tensor]:
        with torch.cuda.stream(streams[k]):
            for _ in range(30):
                found = once(k)
        return found

    with ThreadPoolExecutor(len(shapes)) as pool:
        begun = [pool.submit(several, k) for k in range(len(shapes))]
        for _ in range(40):
            side = side @ side
        found = [b.result() for b in begun]
    torch.cuda.synchronize()
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    graphs: list[torch.cuda.CUDAGraph] = []
    captured: list[list[Tensor]] = []
    for k, stream in enumerate(streams):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured.append(once(k))
        graphs.append(graph)
    for _ in range(10):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(captured, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_in_company_no_launch_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ow.nn.ConvBN2d(16, 64, 1, bias=False, activation="relu").cuda()
    x = torch.randn(4, 16, 14, 14, device="cuda", requires_grad=True)

    def launched() -> tuple[set[str], list[Tensor]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            out = layer(x)
            grads = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
            torch.cuda.synchronize()
        names = {event.key.partition("<")[0].rpartition("::")[2] for event in profile.key_averages()}
        return names & {"normalise_whole", "differentiate_whole", "apply_all", "back_all"}, [out, *grads]

    launched()
    alone, one = launched()
    monkeypatch.setattr(settings, "in_company", lambda: True)
    together, other = launched()
    assert alone == {"normalise_whole", "differentiate_whole"}
    assert together == {"apply_all", "back_all"}
    compiled = torch.compile(layer, fullgraph=True)(x)
    for a, b in zip([*one, one[0]], [*other, compiled], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
