"""The check itself: reports, replays, the process it runs in, what the guard sees, and the forms it comes in."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import derivatives, guard
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import FAR, LAYOUTS, lay
from opwright.kit.check.properties import NAMES
from opwright.kit.check.report import Finding
from opwright.kit.check.sizes import choose_sizes
from opwright.kit.truth.oracle import Oracle
from opwright.testing import checks
from tests.kit.check import catalogue

WRONG = """
import os
import torch
import opwright as ow

@ow.op
def wrong(x: torch.Tensor) -> torch.Tensor:
    return x + 1

@wrong.samples
def _(make):
    yield make(3)
    yield make(2, 5)

@wrong.kernel("cpu")
def fast(x):
    if x.numel() == 1:
        os.abort()
    return x + 1 if x.is_contiguous() else x + 2
"""


@pytest.fixture(scope="session")  # a worker may come back to this file
def wrong(tmp_path_factory: pytest.TempPathFactory) -> ow.Op[..., Any]:
    file = tmp_path_factory.mktemp("ops") / "wrong.py"
    file.write_text(WRONG, encoding="utf-8")
    op: ow.Op[..., Any] = ow.load(file).wrong
    return op


def run(*arguments: str, fails: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd, timeout=280,
        env={**os.environ, "PYTHONPATH": str(catalogue.ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == fails, done.stdout + done.stderr
    return done


def test_a_failure_says_what_where_and_how_to_see_it_again(wrong: ow.Op[..., Any]) -> None:
    report = ow.check(wrong, only=["forward"])
    assert not report.passed
    failure = next(f for f in report.failures if "wrong in" in f.message)
    assert (failure.property, failure.op) == ("forward", "wrong")
    assert failure.index is not None
    assert failure.expected != failure.got
    assert "x=float32" in failure.sample
    with pytest.raises(AssertionError, match="wrong in"):
        report.raise_if_failed()
    assert "FAILED" in str(report)


def test_a_crash_is_a_finding_and_not_the_end(wrong: ow.Op[..., Any]) -> None:
    [result] = [r for r in ow.check(wrong, only=["determinism"], seed=0).results if r.op == "wrong"]
    assert result.passed
    crashed = ow.check(wrong, only=["forward"], case="0-one.float32.plain")
    [failure] = crashed.failures
    assert "SIGABRT" in failure.message
    assert ow.check(wrong, only=["forward"], case="0.float32.plain").passed


def test_the_replay_runs_exactly_the_case(wrong: ow.Op[..., Any]) -> None:
    failure = next(f for f in ow.check(wrong, only=["forward"]).failures if "wrong in" in f.message)
    command = failure.replay.split()
    assert command[:2] == ["opwright", "check"]
    done = run("-m", "opwright", *command[1:], "--json", "-", fails=1)
    found = json.loads(done.stdout)
    assert (found["version"], found["passed"], found["seed"]) == (1, False, 0)
    [again] = [f for r in found["results"] for f in r["failures"]]
    assert sum(r["cases"] for r in found["results"]) == 1
    assert (again["message"], again["index"]) == (failure.message, failure.index)


@pytest.mark.slow
def test_the_command_line_exits_0_when_everything_holds() -> None:
    done = run("-m", "opwright", "check", "cube", "--only", "forward", "--only", "state")
    assert " hold in " in done.stdout
    assert "no property" in run("-m", "opwright", "check", "cube", "--only", "nonsense", fails=2).stderr
    assert "no case" in run("-m", "opwright", "check", "cube", "--case", "nonsense", fails=2).stderr


def test_a_property_without_a_case_says_why() -> None:
    @ow.op
    def whole_numbers_only(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @whole_numbers_only.samples
    def _(make: ow.Maker) -> Any:
        yield make(3, dtype=torch.int64)

    result = ow.check(whole_numbers_only, only=["gradcheck"]).results[0]
    assert result.skipped == "no case applies: no tensor of it has a gradient in this dtype"


@pytest.mark.parametrize("kind", ["swish", pytest.param("rows", marks=pytest.mark.slow)])
def test_the_scaffold_passes(kind: str, tmp_path: Path) -> None:
    name = f"checked_{kind}"
    run("-m", "opwright", "new", name, "--path", str(tmp_path), *(["--rows"] if kind == "rows" else []))
    report = ow.check(getattr(ow.load(tmp_path / name), name))
    assert report.passed, report
    on_gpus = {"streams", "capture", "bands", "devices", "large", "sanitizer"}
    assert {r.property for r in report.results} == {*NAMES} - {"sanitize", "coverage", "adopted"} - on_gpus


WRONG_GRADIENT = """
import torch
import opwright as ow

@ow.op
def half(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5

@half.saving("factor")
def _(x):
    return x * 0.5, torch.full_like(x, 0.5)

@half.gradient
def _(grad, factor):
    return grad * factor

@half.samples
def _(make):
    yield make(3)

@half.backward.kernel("cpu")
def _(grad, x, factor, wanted=None):
    return grad * factor * 2
"""


def test_a_rung_is_checked_by_its_own_name_in_a_script_with_extra_results(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    more = (
        "\nfor op in (half, half.saving_form, half.backward):"
        "\n    report = ow.check(op, only=['forward', 'rejects'])"
        "\n    print(report.passed, [(r.op, r.cases > 0) for r in report.results if r.property == 'forward'])"
        "\n    assert not any(r.skipped for r in report.results), report\n"
    )
    script.write_text(WRONG_GRADIENT + more, encoding="utf-8")
    assert run(str(script), cwd=tmp_path).stdout.splitlines() == [
        "False [('half', True), ('half_saving', True), ('half_backward', True)]",
        "True [('half_saving', True)]",
        "False [('half_backward', True)]",
    ]


@pytest.mark.slow
def test_the_command_checks_a_rung_that_it_is_given() -> None:
    said = run("-m", "opwright", "check", "cube_backward", "--only", "forward").stdout
    assert "cube_backward" in said
    assert "in 0 cases" not in said
    refused = run("-m", "opwright", "bench", "cube_backward", fails=2).stderr
    assert "cube_backward belongs to cube, and is measured with it: name cube" in refused


def test_an_operator_of_a_script_travels_as_source(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    more = "\nprint('RAN')\nreport = ow.check(wrong, only=['forward', 'rejects'])\nprint(report)\n"
    script.write_text(WRONG + more, encoding="utf-8")
    said = run(str(script), cwd=tmp_path).stdout
    assert said.count("RAN") == 1
    assert "SIGABRT" in said
    assert 'ow.check(wrong, only=["forward"], case="wrong:' in said


def test_an_operator_inside_a_function_is_checked_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)

    @ow.op
    def inside(x: Tensor) -> Tensor:
        return x * 2

    report = ow.check(inside, only=["forward", "rejects"])
    assert report.passed
    forward, rejects = (next(r for r in report.results if r.property == p) for p in ("forward", "rejects"))
    assert forward.cases > 0
    assert rejects.skipped is not None
    assert "inside a function" in rejects.skipped


def test_a_check_of_nothing_sensible_says_so() -> None:
    with pytest.raises(TypeError, match="must be an operator, got int"):
        ow.check(3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="there is no property 'speed'; the properties are forward, "):
        ow.check(ow.cube, only=["speed"])
    with pytest.raises(ValueError, match=r"there is no property 'forwrad'; did you mean forward\?"):
        ow.check(ow.cube, only=["forwrad"])


test_cube_in_one_line = checks(ow.cube, only=["forward", "undefined"])


def test_the_guard_sees_writes_on_either_side() -> None:
    assert guard.unavailable() is None
    import ctypes

    with guard.guarded(0x5A, 0x11) as watching:
        x = torch.empty(4)
        assert x.view(torch.uint8).eq(0x5A).all()
        assert watching.outside() == []
        for offset in (16, -4):
            ctypes.c_float.from_address(x.data_ptr() + offset).value = 3.0
            [place] = watching.outside()
            assert (place.address, place.size) == (x.data_ptr(), 16)
            ctypes.memset(x.data_ptr() + offset, 0x11, 4)
        alive = watching.live
        del x
        assert watching.live == alive - 16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_keeps_shape_dtype_and_values(layout: str) -> None:
    import random

    t = torch.rand(2, 3, 2, 4)
    laid = lay(t, layout, random.Random(0))
    assert (laid.shape, laid.dtype) == (t.shape, t.dtype)
    if layout not in ("expanded", "overlapping", "mixed"):
        assert torch.equal(laid, t)
    if layout == "far":
        assert laid.stride(0) > FAR
    if layout not in ("plain", "contiguous", "mixed"):
        assert laid.stride() != t.stride() or laid.storage_offset()
    assert lay(t, "expanded", random.Random(0), written=True) is t


def test_sizes_that_differ_stay_different() -> None:
    import random

    for variant in ("tail", "tail2", "big"):
        for seed in range(50):
            chosen = choose_sizes([3, 4, 5], variant, random.Random(seed))
            assert len(set(chosen.values())) == 3
            assert 1 < chosen[3] * chosen[4] * chosen[5] < 2e5


def test_the_same_seed_draws_the_same() -> None:
    case = Case(2, torch.bfloat16, "mixed", "tail")
    first, second = (Subject(ow.axpby, seed=3).draw(case) for _ in range(2))
    other = Subject(ow.axpby, seed=4).draw(case)
    assert torch.equal(first.args[0], second.args[0])
    assert first.args[0].stride() == second.args[0].stride()
    assert other.args[0].shape != first.args[0].shape or not torch.equal(other.args[0], first.args[0])


def _sum(dtype: torch.dtype, sample: ow.Sample) -> list[Tensor | None]:
    [x] = sample.args
    return [x.to(dtype).sum().to(x.dtype)]


def test_more_is_asked_of_a_kernel_where_the_reference_promises_more() -> None:
    x = torch.rand(40_000, generator=torch.Generator().manual_seed(0))
    one_by_one = x.cumsum(0)[-1] * (1 + 2e-6)  # what float32 loses when added up one after the other
    plain = Oracle(lambda s: [s.args[0].sum()], ow.Sample((x,)))
    plain.judge([one_by_one])
    promised = Oracle(lambda s: _sum(torch.float64, s), ow.Sample((x,)))
    promised.judge([x.double().sum().float()])
    with pytest.raises(Finding, match="wrong in 1 of 1"):
        promised.judge([one_by_one])


def test_where_rounding_decides_between_infinities_a_nan_may_lie() -> None:
    def pulled(sample: ow.Sample) -> list[Tensor | None]:
        grad, x = sample.args
        t = torch.tanh(x)
        return [grad * (1 - t * t)]

    infinite = torch.tensor([math.inf])
    Oracle(pulled, ow.Sample((infinite, torch.tensor([8.6])))).judge([torch.tensor([math.nan])])  # 1 - t² is near 0
    with pytest.raises(Finding, match="nan where the reference is inf"):
        Oracle(pulled, ow.Sample((infinite, torch.tensor([1.0])))).judge([torch.tensor([math.nan])])


def _nearly_cancelled(sample: ow.Sample) -> list[Tensor | None]:
    [x] = sample.args
    return [(x.to(torch.promote_types(x.dtype, torch.float32)) * 1.01).to(x.dtype) - x]


def test_a_cast_in_the_reference_is_a_rounding() -> None:
    x = torch.linspace(1, 1.9, 64, dtype=torch.float16)
    product = x.double() * 1.01
    x = x[product.half().double() != product]  # what is exact loses nothing
    oracle = Oracle(_nearly_cancelled, ow.Sample((x,)))
    exact, eps = x.double() * 0.01, torch.finfo(torch.float16).eps
    oracle.judge([(exact + eps * x).half()])  # rounded to the other side before the difference is taken
    with pytest.raises(Finding, match="off by"):
        oracle.judge([(exact + 40 * eps * x).half()])


def test_the_formula_of_a_form_that_saves_is_its_gradient() -> None:
    make = ow.Maker(torch.float64)
    given = (make(2, 3), make(9, 6), make(9), make(2, 3), make(2, 3))
    packed = derivatives.pack(ow.Sample(given), [make(2, 3), make(2, 3)])
    by_formula = derivatives.by_formula(ow.lltm_cell, 1)(packed)
    torch.testing.assert_close(by_formula, derivatives.through(ow.lltm_cell, ow.lltm_cell.calls.direct, 1)(packed))


def test_a_discontinuous_reference_may_be_met_on_either_side() -> None:
    x = torch.tensor([0.1, 0.2, 0.3]) * 10  # rounding decides on which side of 1, 2, 3 they lie
    oracle = Oracle(lambda s: [torch.floor(s.args[0] / 0.1 * 0.1)], ow.Sample((x,)))
    oracle.judge([torch.floor(x)])
    with pytest.raises(Finding):
        oracle.judge([torch.floor(x) + 20])


def test_the_table_of_broken_operators_is_fresh() -> None:
    assert catalogue.PAGE.read_text(encoding="utf-8") == catalogue.page(), "python -m tests.kit.check.catalogue"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sanitizers_see_what_changes_no_result(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(
        """
import torch
import opwright as ow

@ow.op
def peeks(x: torch.Tensor) -> torch.Tensor:
    return x + 1

@peeks.samples
def _(make):
    yield make(5)

peeks.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,), layout="contiguous"))
""",
        encoding="utf-8",
    )
    (tmp_path / "cpu.cpp").write_text(
        """
#include <opwright/kernel.h>

Tensor peeks_cpu(const Tensor& x) {
    const float* in = data<const float>(x);
    volatile float beyond = x.numel() ? in[x.numel()] : 0;
    return map([zero = beyond * 0 == 1 ? 1.0f : 0.0f](float v) { return v + 1 + zero; }, x);
}

OPWRIGHT_KERNEL(peeks, CPU, peeks_cpu);
""",
        encoding="utf-8",
    )
    op = ow.load(tmp_path).peeks
    assert ow.check(op, only=["forward", "memory"]).passed
    report = ow.check(op, only=["sanitize"])
    assert any("heap-buffer-overflow" in f.message for f in report.failures), report
    assert ow.check(ow.scale, only=["sanitize"]).passed


@pytest.mark.parametrize("only", [["forwrd"], "forward"])
def test_tests_of_a_property_that_does_not_exist_are_an_error(only: Any) -> None:
    with pytest.raises(ValueError, match="only must be a list of properties, which are forward, work, special"):
        checks(ow.cube, only=only)


@pytest.mark.parametrize("here", [True, False])
def test_a_debugger_may_look_on(here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases run in processes of their own, unless somebody wants them in this one."""
    seen: set[int] = set()

    @ow.op(name=f"looked_on_{here}")
    def op(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @op.kernel("cpu")
    def _(x: torch.Tensor) -> torch.Tensor:
        seen.add(os.getpid())
        return x * 2

    monkeypatch.setenv("OPWRIGHT_CHECK_HERE", "1" if here else "0")
    assert ow.check(op, only=["forward"]).passed
    assert seen == ({os.getpid()} if here else set())
