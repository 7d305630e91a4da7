"""explain says what runs, and it is what runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit import private
from opwright.kit.dispatch import node


def test_an_operator_without_kernels_is_its_reference() -> None:
    @ow.op
    def mixed(x: Tensor, y: Tensor, *, a: float = 1.0) -> Tensor:
        return a * x + y

    said = ow.explain(mixed, torch.ones(3, requires_grad=True), torch.ones(3), a=2)
    assert said.runs == "reference"
    assert str(said).splitlines() == [
        "mixed(x=float32[3] cpu, y=float32[3] cpu, a=2)",
        "  forward   reference  mixed has no kernel",
        "  backward  autograd   records what the reference does",
        "  compile   inlined    torch.compile sees through an operator without kernels",
    ]


def test_it_says_why_a_kernel_does_not_run() -> None:
    @ow.op
    def halved(x: Tensor) -> Tensor:
        return x / 2

    @halved.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
    def halved_cpu(x: Tensor) -> Tensor:
        return x * 0.5

    @halved.kernel("cuda")
    def halved_cuda(x: Tensor) -> Tensor:
        return x * 0.5

    assert ow.explain(halved, torch.ones(2)).runs == "halved_cpu"
    said = str(ow.explain(halved, torch.ones(2).double().requires_grad_()))
    assert "halved_cpu: x is float64, the kernel takes float32; halved_cuda: it is for cuda" in said
    assert "the call lies in its domain; in Python" in str(ow.explain(halved, torch.ones(2)))
    why = node.why_not(halved)
    where = "recorded in C++" if why is None else f"recorded in Python, since {why}"
    assert f"halved_backward, derived from the reference, {where}" in said
    assert "graphs hold tests::halved as one call" in said
    assert "no input requires a gradient" in str(ow.explain(halved, torch.ones(2)))
    assert "halved_cpu on cpu, halved_cuda on cuda" in str(ow.explain(halved))


def test_it_says_what_a_call_will_raise_and_computes_nothing() -> None:
    said = ow.explain(ow.axpby, torch.ones(3), torch.ones(4))
    assert said.error == "ValueError: axpby: x and y must broadcast, got (3,) and (4,)"
    huge = torch.empty(1, device="meta").expand(10**12)
    assert ow.explain(ow.cube, huge).error is None
    x = torch.ones(2)
    assert ow.explain(ow.cube_, x).error is None
    assert x.tolist() == [1.0, 1.0]


def test_it_refuses_what_is_no_operator() -> None:
    with pytest.raises(TypeError, match="explain: the first argument must be an operator, got builtin_function"):
        ow.explain(torch.add)  # type: ignore[arg-type]


def test_it_says_that_no_kernel_draws_while_a_gradient_is_recorded() -> None:
    @ow.op(random=True)
    def drawing(x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) > 0.5)

    ran = []

    @drawing.kernel("cpu")
    def drop(x: Tensor) -> Tensor:
        ran.append(True)
        return x * (torch.rand_like(x) > 0.5)

    x = torch.ones(3, requires_grad=True)
    said = ow.explain(drawing, x)
    assert said.runs == "reference"
    assert "its gradient is recorded; without one, drop" in str(said)
    assert "since it draws random numbers, and a gradient needs those that were drawn" in str(said)
    drawing(x).sum().backward()
    assert not ran
    assert ow.explain(drawing, x.detach()).runs == "drop"
    drawing(x.detach())
    assert ran
    assert "the reference while a gradient is recorded" in str(ow.explain(drawing))


def test_a_renamed_back_end_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    @ow.op
    def renamed_end(x: Tensor) -> Tensor:
        return x + 1

    monkeypatch.setattr(private, "privateuse1_name", lambda: "npu")
    with pytest.raises(ValueError, match="no kernel can be for 'npu', a renamed PrivateUse1, since the router knows"):
        renamed_end.kernel("npu")
