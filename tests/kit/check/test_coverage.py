"""Inputs that are searched for: what a kernel tells of its lines, and where the search goes from there."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.kit.check import instrument, lines, sizes, steps
from opwright.kit.check.cases import Case
from opwright.kit.check.report import Report
from tests.broken_ops.mistake import load

needs_tools = pytest.mark.skipif(instrument.unavailable() is not None, reason="no kernel can tell its lines here")

GNU = """
0000000000001000 <_Z4kernv>:
_Z4kernv():
{file}:3
    1000:\tpush   %rbp
{file}:4
    1004:\tcall   9000 <__sanitizer_cov_trace_pc>
    1008:\tmov    %rax,%rbx
    100c:\tcall   9100 <__sanitizer_cov_trace_cmpd>
    1010:\tjbe    1030 <_Z4kernv+0x30>
{file}:5 (discriminator 2)
    1014:\tcall   9000 <__sanitizer_cov_trace_pc>
/usr/include/header.h:7
    1018:\tcall   9000 <__sanitizer_cov_trace_pc>
{file}:6
    101c:\tcall   9200 <__sanitizer_cov_trace_const_cmp4>
    1020:\tjmp    1030 <_Z4kernv+0x30>
{file}:9
    1024:\tleave
    1028:\tret
{file}:8
    102c:\tcall   9000 <__sanitizer_cov_trace_pc>
    1030:\tcall   9300 <_ZN6TensorD1Ev>
    1034:\tcall   9000 <__sanitizer_cov_trace_pc>
    1038:\tcall   9400 <_Unwind_Resume@plt>
"""


def test_blocks_comparisons_and_lines_are_read_from_what_objdump_says(tmp_path: Path) -> None:
    file = tmp_path / "cpu.cpp"
    file.touch()
    for dump in (GNU, GNU.replace("{file}", "; {file}").replace("/usr", "; /usr").replace("call ", "callq\t0x")):
        sites = instrument.read_sites(dump.format(file=file).splitlines(), [file])
        assert sites.blocks == [0x1008 >> 2, 0x1018 >> 2]
        assert sites.compared == [(0x1010 >> 2, "real"), (0x1020 >> 2, "whole")]
        named = {line: blocks for (_, line), blocks in sites.lines.items()}
        assert named == {
            3: {0x402},
            4: {0x402},
            5: {0x406},
            6: {0x407},
        }  # 9 follows a jump, 8 is cleaned up after an error


def test_a_library_that_was_built_elsewhere_of_the_same_sources_serves(tmp_path: Path) -> None:
    (tmp_path / "cpu.cpp").touch()
    dump = GNU.format(file="/elsewhere/cpu.cpp").splitlines()
    assert not instrument.read_sites(dump, [tmp_path / "cpu.cpp"]).blocks
    assert instrument.read_sites(dump, [tmp_path / "cpu.cpp"], ("/elsewhere", str(tmp_path))).blocks


def test_lines_of_every_rung_are_put_together() -> None:
    forward = lines.Told("f", "f", {"/f/cpu.cpp": ([1, 2, 3, 8, 9], [1, 2])}, ["f", "f_backward"])
    backward = lines.Told("f", "f_backward", {"/f/cpu.cpp": ([1, 2, 3, 8, 9], [9])}, ["f", "f_backward"])
    assert list(lines.never_ran([forward])) == []
    assert list(lines.never_ran([forward, backward])) == ["f: cpu.cpp:3–8 never ran: declare a sample that leads there"]


@pytest.mark.parametrize(
    "text", ["0.float32.plain", "2-s0=33,s1=4+2^4+to:25e-2.float64.mixed", "1+alpha=-1e0.int8.far.x"]
)
def test_the_id_of_a_case_is_the_case(text: str) -> None:
    assert Case.read(text).id == text


def test_an_id_of_no_case_is_refused_in_words() -> None:
    for text in ("x.float99.plain", "all"):
        with pytest.raises(ValueError, match=r"a case is SAMPLE.*got "):
            Case.read(text)


@pytest.mark.parametrize("number", [0.0, -0.25, 3.5e-12, 123456789.0, 2.0**70])
def test_a_number_is_spelled_without_what_ids_are_made_of(number: float) -> None:
    text = steps.spelled(number)
    assert not set(".+") & set(text)
    assert float(text) == pytest.approx(number, rel=1e-8)


def test_what_is_no_number_is_spelled_as_one() -> None:
    assert steps.spelled(float("inf")) == "17e307"
    assert steps.spelled(float("nan")) == "0e0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_every_step_keeps_shape_and_dtype_and_stays_finite(dtype: torch.dtype) -> None:
    given = torch.tensor([[1, 2, 3], [4, 5, 6]]).to(dtype)
    for step in (*steps.PLAIN, "by:-3e0", "plus:2e5", "to:7e0", "all:9e1", "again:3"):
        got = steps.take(given, step, random.Random(0))
        assert (got.shape, got.dtype) == (given.shape, dtype)
        assert bool(got.double().isfinite().all())
    assert steps.take(given, "all:9e1", random.Random(0)).double().eq(90).all()


def test_two_sizes_can_be_named_at_once() -> None:
    chosen = sizes.choose_sizes([3, 5, 7], "s1=100,s2=40", random.Random(0))
    assert (chosen[5], chosen[7]) == (100, 40)
    assert chosen[3] <= 4


# --- with a compiler ------------------------------------------------------------------------------------------------

KERNEL = """
#include <opwright/kernel.h>

Tensor {name}_cpu(const Tensor& x) {{
    const Tensor out = empty(with_number(x), dtype(x));
    const int64_t n = x.numel();
    double most = 0;
    for (int64_t i = 0; i < n; ++i) {{
        const double v = data<const float>(x)[i];
        if (v * v > most)
            most = v * v;
        data<float>(out)[i] = v + 1;
    }}
    if (most < 0) {{
        data<float>(out)[0] = 0;
        most = 1;
    }}
    return out;
}}

OPWRIGHT_KERNEL({name}, CPU, {name}_cpu);
"""
OP = """
import torch
import opwright as ow

@ow.op(namespace="covered")
def {name}(x: torch.Tensor) -> torch.Tensor:
    return x + 1

@{name}.samples
def _(make):
    yield make(4)

{name}.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,), layout="contiguous"))
"""


@needs_tools
@pytest.mark.slow
def test_lines_that_nothing_reaches_are_told_and_no_failure(tmp_path: Path) -> None:
    folder = tmp_path / "dead_line"
    folder.mkdir()
    (folder / "op.py").write_text(OP.format(name="dead_line"))
    (folder / "cpu.cpp").write_text(KERNEL.format(name="dead_line"))
    report = ow.check(ow.load(folder).dead_line, only=["coverage"], rung="dead_line")
    assert report.passed, report
    assert report.notes == ["dead_line: cpu.cpp:15–16 never ran: declare a sample that leads there"]
    assert report.to_json()["notes"] == report.notes


@needs_tools
def test_what_a_search_finds_no_default_check_does_and_the_replay_shows() -> None:
    op = load("reached").on_a_sum
    plain = ow.check(op, only=["forward"], rung="on_a_sum")
    assert plain.passed, plain
    report = ow.check(op, coverage=True, only=["coverage"], rung="on_a_sum")
    assert report.failures
    replayed = _replayed(op, report)
    assert [f.message for f in replayed.failures] == [report.failures[0].message]


def _replayed(op: ow.Op[..., object], report: Report) -> Report:
    words = report.failures[0].replay.split()
    return ow.check(op, only=["coverage"], case=words[words.index("--case") + 1], rung="on_a_sum")


def test_nobody_is_told_of_lines_where_there_is_no_objdump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "binutils" in str(instrument.unavailable())
    assert instrument.environment() == {}
