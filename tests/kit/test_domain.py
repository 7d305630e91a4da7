"""A kernel runs inside its domain and the reference outside it, for every caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import opwright as ow

runs: list[str] = []


@ow.op
def doubled(x: Tensor, y: Tensor | None = None) -> Tensor:
    runs.append("reference")
    ow.require(x.dim() < 4, "x must have fewer than 4 dimensions, got {x.shape}")
    return x * 2


@doubled.kernel("cpu", ow.Domain(dtypes=(torch.float32,), layout="contiguous", sizes="x[..., k%2] y[k]"))
def doubled_cpu(x: Tensor, y: Tensor | None = None) -> Tensor:
    runs.append("kernel")
    return torch.add(x, x)


CALLERS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "python": lambda x, y: doubled(x, y),
    "torch.ops": lambda x, y: torch.ops.tests.doubled(x, y),
    "no_grad": lambda x, y: torch.no_grad()(doubled)(x, y),
    "inference_mode": lambda x, y: torch.inference_mode()(doubled)(x, y),
    "compiled": lambda x, y: torch.compile(doubled, backend="aot_eager", fullgraph=True)(x, y),
    "recorded": lambda x, y: doubled(x.detach().requires_grad_(), y),
}
INSIDE = (torch.rand(3, 4), None), (torch.rand(2, 3, 4), torch.rand(4)), (torch.rand(2), None)
OUTSIDE = (
    (torch.rand(3, 4).double(), None),
    (torch.rand(4, 4).t(), None),
    (torch.rand(3, 3), None),
    (torch.rand(3, 4), torch.rand(3)),
    (torch.rand(4), torch.rand(4).double()),
)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("given, expected", [(INSIDE, "kernel"), (OUTSIDE, "reference")], ids=["inside", "outside"])
def test_kernel_runs_in_its_domain_alone(caller: str, given: Any, expected: str) -> None:
    for x, y in given:
        torch._dynamo.reset()
        CALLERS[caller](x, y)  # compile and probe first
        runs.clear()
        torch._dynamo.reset()
        out = CALLERS[caller](x, y)
        torch.testing.assert_close(out, x * 2)
        assert runs[-1] == expected


def test_what_the_reference_rejects_no_kernel_sees() -> None:
    runs.clear()
    with pytest.raises(ValueError, match="doubled: x must have fewer than 4 dimensions"):
        doubled(torch.rand(1, 1, 1, 3))
    assert "kernel" not in runs


def test_gradients_of_a_kernel_come_from_the_ladder() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    out = doubled(x)
    assert out.grad_fn is not None
    assert out.grad_fn.name() in ("_NodeBackward", "DoubledBackward")
    (grad,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
    torch.testing.assert_close(grad, 8 * x)
    (second,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(second, torch.full_like(x, 8.0))


def test_with_a_kernel_the_author_chooses_whether_compile_inlines() -> None:
    choices: dict[Literal["call", "inline"], str] = {"call": "chosen_call", "inline": "mul"}
    for choice, target in choices.items():

        @ow.op(name=f"chosen_{choice}", compile=choice)
        def chosen(x: Tensor) -> Tensor:
            return x * 2

        @chosen.kernel("cpu")
        def _(x: Tensor) -> Tensor:
            return x + x

        graphs: list[Any] = []

        def keep(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return graph.forward

        torch.compile(lambda x, f=chosen: f(x), backend=keep, fullgraph=True)(torch.ones(2))
        assert target in str(graphs[0].graph)


def test_compile_sees_through_an_operator_without_a_kernel_for_the_device() -> None:
    @ow.op
    def elsewhere(x: Tensor) -> Tensor:
        return x * 2

    @elsewhere.kernel("cuda")
    def _(x: Tensor) -> Tensor:
        return x + x

    graphs: list[str] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(str(graph.graph))
        return graph.forward

    torch.compile(lambda x: elsewhere(x), backend=keep, fullgraph=True)(torch.ones(2))
    assert "elsewhere" not in graphs[0].replace("elsewhere(x)", "")
    assert "mul" in graphs[0]


@pytest.mark.parametrize(
    "sizes", ["x[", "x[k,...]", "x[k*2]", "x k", "x[..., k] and", "x[k+3]", "x[3*4]", "x[3*_]", "x[0*k]", "x[k%0]"]
)
def test_a_size_pattern_that_cannot_be_read_is_refused(sizes: str) -> None:
    with pytest.raises(ValueError, match="sizes: cannot read"):
        ow.Domain(sizes=sizes)


@pytest.mark.parametrize(
    "domain, arguments, why",
    [
        (ow.Domain(ranks={"x": 2}), {"x": torch.ones(3)}, "x has 1 dimensions, the kernel takes 2"),
        (
            ow.Domain(ranks={"x": range(1, 3)}),
            {"x": torch.ones(())},
            "x has 0 dimensions, the kernel takes 1 to 2",
        ),
        (ow.Domain(layout="channels_last"), {"x": torch.ones(1, 2, 3, 4)}, "x is not channels_last"),
        (ow.Domain(sizes="x[3]"), {"x": torch.ones(4)}, "x has shape (4,), which does not fit x[3]"),
        (ow.Domain(), {"x": torch.ones(1), "y": torch.ones(1).int()}, "y is int32 and x is float32"),
        (ow.Domain(mixed=True), {"x": torch.ones(1), "y": torch.ones(1).int()}, None),
        (ow.Domain(), {"x": torch.ones(1), "y": torch.ones(1, device="meta")}, "y is on meta and x on cpu"),
        (ow.Domain(sizes="x[n, n]"), {"x": torch.ones(2, 2)}, None),
        (ow.Domain(), {"x": torch.ones(2).to_sparse()}, "x is sparse_coo, the kernel takes strided tensors"),
    ],
)
def test_a_domain_says_why_it_refuses(domain: ow.Domain, arguments: dict[str, Any], why: str | None) -> None:
    assert domain.refuses(arguments) == why


def test_a_domain_takes_wide_states_and_dtypes_of_single_tensors() -> None:
    domain = ow.Domain(
        dtypes=(torch.float32, torch.bfloat16), wide=("c",), types={"n": (torch.int64,)}, sizes="x[b, i] c[b, i] n[b]"
    )
    x, c, n = torch.ones(2, 3).bfloat16(), torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    assert domain.refuses({"c": c, "x": x, "n": n}) is None
    assert domain.refuses({"c": c.bfloat16(), "x": x, "n": n}) is None
    assert domain.refuses({"x": x.float(), "c": c.bfloat16()}) == "c is bfloat16 and x is float32"
    assert domain.refuses({"x": x, "n": n.int()}) == "n is int32, the kernel takes int64"
    assert domain.refuses({"x": x.double()}) == "x is float64, the kernel takes float32, bfloat16"


def test_sizes_may_be_multiples_and_sums() -> None:
    domain = ow.Domain(sizes="x[b, i] h[b, k] weight[3*k, k+i]")
    x, h = torch.ones(2, 4), torch.ones(2, 3)
    assert domain.refuses({"x": x, "weight": torch.ones(9, 7), "h": h}) is None
    assert "does not fit weight[3*k, k+i] with i = 4, k = 3" in str(
        domain.refuses({"x": x, "h": h, "weight": torch.ones(8, 7)})
    )
    assert "asks for k+i with k = 3, i = 4" in str(domain.refuses({"x": x, "h": h, "weight": torch.ones(9, 8)}))


def test_a_dtype_is_no_string() -> None:
    with pytest.raises(TypeError, match=r"a dtype must be one of torch's, such as torch\.float32, got 'float32'"):
        ow.Domain(dtypes=("float32",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the ranks of x must be a number or a range without a step"):
        ow.Domain(ranks={"x": range(1, 6, 2)})  # which C++ would not count


@pytest.mark.parametrize(
    "said, error, why",
    [
        ({"layout": "contigous"}, ValueError, "layout must be 'any', 'contiguous' or 'channels_last', got 'contigous'; "
         "did you mean contiguous"),
        ({"layout": None}, ValueError, "layout must be 'any', .* got None"),
        ({"dtypes": "float32"}, TypeError, "a dtype must be one of torch's, such as torch.float32, got 'float32'"),
        ({"dtypes": 3}, TypeError, "such as torch.float32, got 3"),
        ({"types": {"n": torch.int64}}, TypeError, "the types of n are several; write"),
        ({"types": {"n": "int64"}}, TypeError, "got 'int64' in the types of n"),
        ({"types": "n"}, TypeError, "types must be a dict by the names of tensors, got 'n'"),
        ({"ranks": 2}, TypeError, "ranks must be a dict by the names of tensors, got 2"),
        ({"ranks": {"x": True}}, TypeError, "the ranks of x must be a number or a range"),
        ({"ranks": {"x": -1}}, TypeError, "the ranks of x must be a number or a range"),
        ({"wide": "state"}, TypeError, "wide must be a tuple of names, got 'state'"),
        ({"mixed": "no"}, TypeError, "mixed must be True or False, got 'no'"),
        ({"broadcast": 1}, TypeError, "broadcast must be True or False, got 1"),
        ({"sizes": {"x": "k"}}, TypeError, "sizes must be a string"),
    ],
)  # fmt: skip
def test_a_domain_takes_no_word_that_it_does_not_know(said: dict[str, Any], error: Any, why: str) -> None:
    with pytest.raises(error, match=f"Domain: .*{why}"):
        ow.Domain(**said)


def test_a_layout_that_nobody_knows_lets_no_kernel_run() -> None:
    domain = ow.Domain()
    object.__setattr__(domain, "layout", "contigous")
    assert domain.refuses({"x": torch.ones(2)}) == "x is not contigous"


def test_a_domain_that_names_no_tensor_of_the_operator_is_refused() -> None:
    for word, domain in (
        ("sizes", ow.Domain(sizes="z[k]")),
        ("ranks", ow.Domain(ranks={"z": 2})),
        ("wide", ow.Domain(wide=("z",))),
        ("types", ow.Domain(types={"z": (torch.int64,)})),
    ):
        with pytest.raises(
            TypeError, match=f"doubled: {word} of the domain names 'z'; the tensors of doubled are x, y"
        ):
            doubled.kernel("cpu", domain)
        with pytest.raises(TypeError, match=f"doubled: {word} of the domain names 'z'"):
            doubled.kernel_file("cpu.cpp", domain)


def test_a_number_is_held_against_the_tensors_that_share_a_dtype() -> None:
    ran: list[str] = []

    @ow.op(namespace="domain_numbers")
    def picked(x: Tensor, index: Tensor, a: ow.Number) -> Tensor:
        return x[index] * a

    @picked.kernel("cpu", ow.Domain(dtypes=(torch.float32,), types={"index": (torch.int64,)}))
    def _(x: Tensor, index: Tensor, a: float) -> Tensor:
        ran.append("kernel")
        return x[index] * a

    picked(torch.rand(3), torch.tensor([1]), 1.5)
    assert ran == ["kernel"]


def test_an_error_of_the_gpu_is_not_hidden_by_the_references() -> None:
    @ow.op(namespace="domain_errors")
    def fails(x: Tensor) -> Tensor:
        ow.require(x.dim() == 0, "x must have no dimensions")
        return x + 1

    @fails.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        raise RuntimeError("fails: the kernel failed: an illegal memory access (cudaErrorIllegalAddress)")

    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        fails(torch.rand(3))
