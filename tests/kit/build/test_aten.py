"""Kernels on PyTorch's own tensors, as extensions have them; and PyTorch's operators called by kernels."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.build import toolchain
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import Unavailable, WrongKernel

HEADERS = "\n".join(
    f"#include <{name}.h>" for name in ("ATen/TensorOperators", "ATen/ops/sigmoid", "ATen/ops/sum", "opwright/kernel")
)


def load(folder: Path, operator: str, kernel: str, **options: Any) -> Any:
    folder.mkdir()
    head = "import torch\nfrom torch import Tensor\nimport opwright as ow\n\n"
    tail = f"\n{folder.name}.kernel_file('cpu.cpp', options=ow.Options(**{options!r}))\n"
    (folder / "op.py").write_text(f"{head}@ow.op{operator}{tail}", encoding="utf-8")
    (folder / "cpu.cpp").write_text(kernel, encoding="utf-8")
    return getattr(ow.load(folder), folder.name)


BLEND = """
def blend(
    x: Tensor, dims: list[int], parts: list[Tensor], bias: Tensor | None = None, *, beta: float = 1.0, how: str = "a",
    why: str | None = None,
) -> tuple[Tensor, Tensor]:
    out = x * torch.sigmoid(beta * x)
    out = out if bias is None else out + bias
    for part in parts:
        out = out + part
    return out, out.sum(dims)

@blend.samples
def _(make):
    yield make(3, 4), [1], [make(3, 4), make(4)], make(4), {"beta": 2.0, "why": "w" * 50}
    yield make(3, 4), [0, 1], [], None, {"how": "b"}
"""

BLEND_CPU = """
std::vector<at::Tensor> blend_cpu(at::Tensor x, at::IntArrayRef dims, at::TensorList parts,
                                  const std::optional<at::Tensor>& bias, double beta, const std::string& how,
                                  const std::optional<std::string>& why) {
    auto out = x * at::sigmoid(beta * x);
    if (bias) out = out + *bias;
    for (const auto& part : parts) out = out + part;
    return {out, out.sum(dims)};
}
OPWRIGHT_KERNEL(blend, CPU, blend_cpu);
"""


def test_a_kernel_takes_and_returns_atens_types(tmp_path: Path) -> None:
    op = load(tmp_path / "blend", BLEND, HEADERS + BLEND_CPU, abi="aten")
    report = ow.check(op, only=["forward", "gradients", "memory", "leak"])
    assert report.passed, report
    assert {r.property for r in report.results if r.op == "blend" and r.cases} == {
        "forward",
        "gradients",
        "memory",
        "leak",
    }
    x = torch.ones(2, 2)
    assert "forward   cpu.cpp" in str(ow.explain(op, x, [1], []))


@pytest.mark.slow
def test_the_header_of_every_tutorial_is_found(tmp_path: Path) -> None:
    op = load(
        tmp_path / "tutor",
        "\ndef tutor(x: Tensor) -> Tensor:\n    return x * 2\n",
        "#include <torch/extension.h>\n#include <opwright/kernel.h>\n"
        "torch::Tensor tutor_cpu(torch::Tensor x) { return x * 2; }\nOPWRIGHT_KERNEL(tutor, CPU, tutor_cpu);\n",
        abi="aten",
    )
    assert op(torch.ones(2)).tolist() == [2, 2]
    assert "forward   cpu.cpp" in str(ow.explain(op, torch.ones(2)))


def test_a_missing_python_h_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cpu.cpp"
    source.write_text("#include <torch/extension.h>\n", encoding="utf-8")
    assert Plan("it", (source,), ow.Options(abi="aten")).uses_python
    source.write_text("#include <ATen/ATen.h>\n", encoding="utf-8")
    assert not Plan("it", (source,), ow.Options(abi="aten")).uses_python
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(Unavailable, match=r"there is no Python.h in .*; install Python's headers .*python3-dev"):
        toolchain.python_includes()


def test_a_list_of_another_length_than_the_schemas_results_is_told(tmp_path: Path) -> None:
    kernel = (
        "std::vector<Tensor> pair_cpu(const Tensor& x) { return {x, x, x}; }\nOPWRIGHT_KERNEL(pair, CPU, pair_cpu);"
    )
    text = "\ndef pair(x: Tensor) -> tuple[Tensor, Tensor]:\n    return x + 1, x + 2\n"
    op = load(tmp_path / "pair", text, f"#include <opwright/kernel.h>\n{kernel}\n")
    with pytest.raises(RuntimeError, match="pair: the kernel returned 3 tensors, its schema has 2 results"):
        op(torch.ones(2))


def test_atens_types_are_compared_with_the_schema(tmp_path: Path) -> None:
    kernel = (
        "at::Tensor other_cpu(at::Tensor x, at::IntArrayRef n) { return x; }\nOPWRIGHT_KERNEL(other, CPU, other_cpu);"
    )
    text = "\ndef other(x: Tensor, n: int) -> Tensor:\n    return x * n\n"
    op = load(tmp_path / "other", text, f"#include <opwright/kernel.h>\n{kernel}\n", abi="aten")
    with pytest.raises(WrongKernel, match=r"takes \(Tensor, std::vector<int64_t>\).*needs `Tensor other_cpu"):
        op.build()


SPELLINGS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mm(x, y)": lambda x, y, i: x.mm(y),
    "matmul(x, y)": lambda x, y, i: x.matmul(y),
    "reshape(bmm(unsqueeze(x, 0), unsqueeze(y, 0)), {3, 3})": lambda x, y, i: x.mm(y),
    "linear(x, y)": lambda x, y, i: x @ y.T,
    "linear(x, y, select(y, 0, 1))": lambda x, y, i: torch.nn.functional.linear(x, y, y[1]),
    "contiguous(t(x))": lambda x, y, i: x.t().contiguous(),
    "clone(transpose(x, 0, 1))": lambda x, y, i: x.t().contiguous(),
    "clone(permute(x, {1, 0}))": lambda x, y, i: x.t().contiguous(),
    "clone(expand(select(x, 0, 0), {3, 3}))": lambda x, y, i: x[0].expand(3, 3).clone(),
    "clone(squeeze(narrow(x, 1, 1, 1), 1))": lambda x, y, i: x[:, 1].clone(),
    "clone(transpose(x, -1, 0))": lambda x, y, i: x.t().contiguous(),
    "clone(narrow(t(x), 0, 1, 2))": lambda x, y, i: x.t()[1:].clone(),
    "clone(t(narrow(narrow(x, 0, 1, 2), 1, 2, 1)))": lambda x, y, i: x[1:, 2:].t().clone(),
    "clone(narrow(x, 0, -2, 2))": lambda x, y, i: x[-2:].clone(),
    "clone(reshape(narrow(x, 0, 1, 2), {3, 2, 1}))": lambda x, y, i: x[1:].reshape(3, 2, 1).clone(),
    "clone(reshape(t(x), {9}))": lambda x, y, i: x.t().reshape(9),
    "clone(reshape(x, {1, -1}))": lambda x, y, i: x.reshape(1, -1).clone(),
    "clone(reshape(narrow(x, 0, 3, 0), {0, 7}))": lambda x, y, i: x[3:].reshape(0, 7),
    "to(x, DType::Double)": lambda x, y, i: x.double(),
    "cat({x, y}, 1)": lambda x, y, i: torch.cat([x, y], 1),
    "stack({x, y})": lambda x, y, i: torch.stack([x, y]),
    "sum(x, {0})": lambda x, y, i: x.sum(0),
    "mean(x, {0, 1}, true)": lambda x, y, i: x.mean((0, 1), keepdim=True),
    "amax(x, {1})": lambda x, y, i: x.amax(1),
    "amin(x, {1}, true)": lambda x, y, i: x.amin(1, keepdim=True),
    "cumsum(x, 1)": lambda x, y, i: x.cumsum(1),
    "softmax(x, -1)": lambda x, y, i: x.softmax(-1),
    "log_softmax(x, 0)": lambda x, y, i: x.log_softmax(0),
    "mul(x, y)": lambda x, y, i: x * y,
    "div(x, y)": lambda x, y, i: x / y,
    "exp(x)": lambda x, y, i: x.exp(),
    "log(exp(x))": lambda x, y, i: x.exp().log(),
    "tanh(x)": lambda x, y, i: x.tanh(),
    "sigmoid(x)": lambda x, y, i: x.sigmoid(),
    "relu(x)": lambda x, y, i: x.relu(),
    "where(to(x, DType::Bool), x, y)": lambda x, y, i: torch.where(x.bool(), x, y),
    "index_select(x, 0, i)": lambda x, y, i: x.index_select(0, i),
    "gather(x, 1, expand(unsqueeze(i, 1), {3, 1}))": lambda x, y, i: x.gather(1, i[:, None]),
    "std::get<1>(sort(x, 1, true))": lambda x, y, i: x.sort(1, descending=True).indices,
    "std::get<0>(topk(x, 2))": lambda x, y, i: x.topk(2).values,
}


def test_every_short_spelling_calls_its_operator(tmp_path: Path) -> None:
    calls = ", ".join(SPELLINGS)
    kernel = f"""
#include <opwright/aten.h>
using namespace aten;
std::vector<Tensor> spelled_cpu(const Tensor& x, const Tensor& y, const Tensor& numbers) {{
    const Tensor i = to(numbers, DType::Long);
    Tensor zeros = clone(x), copy = clone(x);
    zero_(zeros), copy_(copy, y);
    return {{zeros, copy, {calls}}};
}}
OPWRIGHT_KERNEL(spelled, CPU, spelled_cpu);
"""
    text = "\ndef spelled(x: Tensor, y: Tensor, i: Tensor) -> list[Tensor]:\n    return [x + 1]\n"
    op = load(tmp_path / "spelled", text, kernel)
    x, y, i = torch.randn(3, 3), torch.rand(3, 3), torch.tensor([2, 0, 1])
    zeros, copy, *results = op(x, y, i.float())
    assert torch.equal(zeros, torch.zeros(3, 3))
    assert torch.equal(copy, y)
    for (spelling, function), got in zip(SPELLINGS.items(), results, strict=True):
        expected = function(x, y, i)
        assert got.dtype == expected.dtype, spelling
        torch.testing.assert_close(got, expected, msg=f"{spelling}: {got}, expected {expected}")


def test_every_short_spelling_is_tested() -> None:
    header = (toolchain.INCLUDE / "opwright" / "aten.h").read_text(encoding="utf-8")
    short = header[header.index("namespace opwright::aten {") :]
    names = set(re.findall(r"^inline [\w:<>, ]+ (\w+)\(", short, re.MULTILINE))
    assert len(names) > 30
    assert names == {n for n in names if any(re.search(rf"\b{n}\(", s) for s in [*SPELLINGS, "zero_(", "copy_("])}


def test_python_is_part_of_the_key_of_what_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cpu.cpp"

    def key(text: str) -> str:
        source.write_text(text, encoding="utf-8")
        return Plan("it", (source,), ow.Options(abi="aten")).key

    with_python, without = key("#include <Python.h>\n"), key("#include <ATen/ATen.h>\n")
    monkeypatch.setattr(sys.implementation, "cache_tag", "another-1")
    assert key("#include <Python.h>\n") != with_python
    assert key("#include <ATen/ATen.h>\n") == without


def test_a_sum_of_nothing_keeps_signs_and_strides(tmp_path: Path) -> None:
    kernel = """
#include <opwright/kernel.h>
Tensor summed_cpu(const Tensor& x, const Tensor& like) { return sum_to(like, [](float v) { return v; }, x); }
OPWRIGHT_KERNEL(summed, CPU, summed_cpu);
"""
    text = "\ndef summed(x: Tensor, like: Tensor) -> Tensor:\n    return x.sum_to_size(like.shape) + 1\n"
    op = load(tmp_path / "summed", text, kernel)
    x = torch.tensor([[-0.0, 1.0], [2.0, -0.0], [0.0, 3.0]]).t()
    out = op(x, x)
    assert torch.equal(torch.signbit(out), torch.signbit(x))
    assert out.stride() == x.stride()
    assert op(x, x[:, :1]).flatten().tolist() == [2.0, 4.0]


def test_a_function_of_several_tensors_is_summed(tmp_path: Path) -> None:
    kernel = """
#include <opwright/kernel.h>
Tensor dotted_cpu(const Tensor& x, const Tensor& y, const Tensor& like) {
    return sum_to(like, [](float a, float b) { return a * b; }, x, y);
}
OPWRIGHT_KERNEL(dotted, CPU, dotted_cpu);
"""
    text = "\ndef dotted(x: Tensor, y: Tensor, like: Tensor) -> Tensor:\n    return x.sum_to_size(like.shape) * 0\n"
    op = load(tmp_path / "dotted", text, kernel)
    x, y = torch.rand(3, 5, 7), torch.rand(5, 1)
    for like in (torch.empty(7), torch.empty(5, 1), torch.empty(()), torch.empty(3, 5, 7)):
        torch.testing.assert_close(op(x, y, like), (x * y).sum_to_size(like.shape))
    half = op(x.bfloat16(), y.bfloat16(), torch.empty(7).bfloat16())
    torch.testing.assert_close(half, (x.bfloat16() * y.bfloat16()).sum_to_size(7))
