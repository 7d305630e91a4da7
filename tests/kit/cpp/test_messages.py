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
from tests.kit.cpp import workplace


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
    # The operator before the overloads that kernels are bound to: a call by its name takes the first that fits.
    assert verbs == sorted(verbs, key=["wire", "define", "made", "hidden", "install", "record", "end"].index)


LOADED = """
import json, sys
import torch
from opwright.kit.build import own
torch.ops.load_library(own.built("native", own.native).to_load())
said = json.load(sys.stdin)
print(json.dumps([torch.ops.opwright_native.load(text) for text in said]))
"""


def loaded(*texts: str) -> list[str]:
    """What stands in the way of each text, one after the other in a process that has no operators."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def said() -> str:
    if native.available() is not None:
        pytest.skip("opwright's own C++ is not built")
    # Under a namespace of its own, which no library binds kernels in.
    return messages.text([ow.axpby], keys_of(ow.axpby)).replace("opwright::", "said_ops::")


def test_another_schema_is_refused_and_so_are_kernels_that_are_not_there(said: str) -> None:
    other = re.sub(r"(made\x1fsaid_ops::axpby\x1f)\w", r"\g<1>x", said)
    first, another, made_of_others = loaded(said, said.replace("Scalar a=1", "Scalar a=2"), other)
    assert "said_ops::axpby is in this process already, with kernels of other sources" in made_of_others
    assert "said_ops::axpby: no library in this process binds said_ops::axpby.cpu_key, its kernel for CPU" in first
    assert "said_ops::axpby is in this process already, with another schema" in another


def test_a_text_that_was_cut_or_that_others_wrote_defines_nothing(said: str) -> None:
    pieces = said.split(messages.MESSAGE)
    cut = messages.MESSAGE.join(pieces[:3]) + messages.MESSAGE
    unknown = said.replace("\x1erecord\x1f", "\x1erecall\x1f", 1)
    other = said.replace("version ", "version 9", 1)
    unparsed = said.replace("Tensor x", "Tensr x", 1)
    hidden_first = messages.MESSAGE.join([pieces[0], *(p for p in pieces[1:] if not p.startswith("define"))])
    *troubles, last = loaded("", cut, unknown, other, unparsed, hidden_first, said)
    assert [re.sub(r"\s+", " ", t)[:60] for t in troubles[:4]] == [
        "what it says of its operators cannot be read; another version of opwright wrote it"[:60],
        "what it says of its operators is cut short; build or fetch it again"[:60],
        "it says 'recall' of an operator, which cannot be read; another version"[:60],
        "another version of opwright is in this process than the one that wrote it"[:60],
    ]
    assert troubles[4].startswith("said_ops::axpby")
    assert "its operator is not defined before it" in troubles[5]
    assert "is in this process already" not in last  # nothing of the others was defined


def test_an_operator_that_is_somebody_elses_is_refused(said: str) -> None:
    program = LOADED.replace("said =", "lib = torch.library.Library('said_ops', 'DEF'); lib.define(%r)\nsaid =")
    done = subprocess.run(
        [sys.executable, "-c", program % ow.axpby.schema],
        input=json.dumps([said]), capture_output=True, text=True, check=True,
    )  # fmt: skip
    [trouble] = json.loads(done.stdout.splitlines()[-1])
    assert "said_ops::axpby is in this process already, and opwright did not bring it" in trouble


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
    assert re.search(
        r"definitions_of_tried_0 \[\[OPWRIGHT_NAMESPACE=opwright\]\] \[\[OPWRIGHT_KEY=tried_\w+_0\]\]", listing
    )


@workplace.needs_cmake
@pytest.mark.parametrize("when", ["before", "after"])
def test_another_version_of_torch_is_refused_whenever_it_is_found(tmp_path: Path, when: str) -> None:
    """What find_package(Torch) leaves behind is all that is compared, so that another torch need not be there."""
    other = tmp_path / "other"
    (other / "include" / "torch" / "headeronly").mkdir(parents=True)
    lines = "".join(f"#define TORCH_VERSION_{part} {n}\n" for part, n in (("MAJOR", 1), ("MINOR", 2), ("PATCH", 3)))
    (other / "include" / "torch" / "headeronly" / "version.h").write_text(lines)
    folder = workplace.write_operator(tmp_path / "halved", "compared_ops")
    body = [f"opwright_add_operators(mine {folder})"]
    body.insert(0 if when == "before" else 1, f"set(TORCH_INSTALL_PREFIX {other})")
    done = workplace.configure(workplace.write_project(tmp_path / "project", "\n".join(body)), tmp_path / "build")
    assert done.returncode != 0
    assert f"find_package(Torch) found 1.2.3 in {other}" in " ".join(done.stderr.split())
