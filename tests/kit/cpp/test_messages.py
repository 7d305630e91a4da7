"""What is generated for C++: messages that opwright's own C++ reads, headers, and lists for CMake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opwright as ow
from opwright.kit.build.library import Library
from opwright.kit.cpp import header, messages, project
from opwright.kit.dispatch import native


def keys_of(*operators: ow.Op[..., object]) -> dict[Library, str]:
    rungs = [rung for op in operators for rung in op.ladder]
    found = {k.library: "key" for rung in rungs for k in rung.kernels if k.library is not None and k.device == "cpu"}
    return dict(found)


def test_what_is_said_of_an_operator() -> None:
    said = [message[:3] for message in messages.messages([ow.linear], keys_of(ow.linear))]
    assert ("define", "opwright::linear", ow.linear.schema) in said
    assert [m[:2] for m in said if m[0] == "install"] == [
        ("install", "opwright::linear"),
        ("install", "opwright::linear_backward"),
    ]
    assert [m[1] for m in said if m[0] == "hidden"] == ["opwright::linear.cpu_key", "opwright::linear_backward.cpu_key"]
    verbs = [m[0] for m in said]
    assert verbs == sorted(verbs, key=["hidden", "define", "install", "record"].index)


LOADED = """
import json, sys
import torch
from opwright.kit.build import own
torch.ops.load_library(own.built("native", own.native).to_load())
said = json.load(sys.stdin)
print(json.dumps([torch.ops.opwright_native.load(text) for text in said]))
"""


@pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built")
def test_what_is_said_is_read_and_another_schema_is_refused() -> None:
    text = messages.text([ow.axpby, ow.lltm_cell], keys_of(ow.axpby, ow.lltm_cell))
    # In a process that has no operators, under a namespace of its own.
    text = text.replace("opwright::", "said_ops::")
    other = text.replace("Scalar a=1", "Scalar a=2")
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        input=json.dumps([text, text, other]),
        capture_output=True,
        text=True,
        check=True,
    )
    first, again, another = json.loads(done.stdout.splitlines()[-1])
    assert first == again == ""
    assert "said_ops::axpby is in this process already, with another schema" in another


def test_a_header_has_a_function_for_each_operator() -> None:
    text = header.header("tried", [ow.axpby, ow.lltm_cell, ow.linear])
    assert "struct axpby_options {\n    at::Scalar a = 1;\n    at::Scalar b = 1;\n};" in text
    assert (
        "inline at::Tensor axpby(const at::Tensor& x, const at::Tensor& y, const axpby_options& options_ = {}) {"
        in text
    )
    assert "struct lltm_cell_result {\n    at::Tensor h;\n    at::Tensor c;\n};" in text
    assert "const std::optional<at::Tensor>& bias = std::nullopt" in text
    assert text.count("opwright_trouble_of_tried();") == 1


def test_what_is_written_stays_where_nothing_changes(tmp_path: Path) -> None:
    if native.available() is not None:
        pytest.skip("opwright's own C++ is not built")
    left = project.generate("tried", [ow.cube, ow.cube_], tmp_path, with_cuda=False)
    assert left == ["cube/cuda.cu: the project does not enable the language CUDA", "cube_: it has no kernel in C++"]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    project.generate("tried", [ow.cube, ow.cube_], tmp_path, with_cuda=False)
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    listing = (tmp_path / "operators.cmake").read_text()
    assert re.search(r"COMPILE_DEFINITIONS \[\[OPWRIGHT_NAMESPACE=opwright;OPWRIGHT_KEY=tried_\w+_0\]\]", listing)
