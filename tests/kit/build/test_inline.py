"""Functions from source strings: what they write to, what they include, and where an error in them is found."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright import magic
from opwright.kit.build import places, strings

# One build for all of this file.
SOURCE = """
#include <opwright/kernel.h>
#include "factor.h"
void filled(Tensor& x, const Tensor& by) {
    for (int64_t i = 0; i < x.numel(); ++i) x.mutable_data_ptr<float>()[i] = FACTOR * by.const_data_ptr<float>()[0];
}
void listed(std::vector<Tensor>& xs) {}
Tensor read(const Tensor& x) {
    return compute(x, [&](auto zero) { return map([](decltype(zero) v) { return v; }, x); });
}
"""


def made(folder: Path, factor: int = 9) -> Any:
    (folder / "factor.h").write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
    options = ow.Options(include=(str(folder),), cxxflags=("-O0",))
    return ow.inline(SOURCE, functions=["filled", "listed", "read"], options=options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inline")


def test_a_function_that_takes_a_tensor_to_write_to_counts_as_a_write(folder: Path) -> None:
    functions = made(folder)
    one = torch.ones(1)
    w, x = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    y, version = (w * x).sum(), x._version
    functions.read(x)
    assert x._version == version
    functions.filled(x, one)
    assert (x.tolist(), x._version) == ([9.0, 9.0, 9.0], version + 1)
    functions.listed([x, one])
    assert (x._version, one._version) == (version + 2, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    for given in ((w, one), (torch.ones(3), torch.ones(1, requires_grad=True))):
        with pytest.raises(RuntimeError, match=r"filled: it writes to a tensor.*call it under torch\.no_grad\(\)"):
            functions.filled(*given)
    with torch.no_grad():
        functions.filled(w, one)
    assert w.tolist() == [9.0, 9.0, 9.0]


def test_an_edited_header_is_taken_up_and_the_same_one_costs_nothing(folder: Path) -> None:
    first = made(folder)
    assert made(folder) is first
    x = torch.ones(1)
    made(folder, 5).filled(x, torch.ones(1))
    assert x.item() == 5
    assert made(folder) is first


def test_a_kernel_for_another_device_or_of_another_kind_is_not_replaced() -> None:
    @ow.op(name="inline_thrice")
    def thrice(x: Tensor) -> Tensor:
        return 3 * x

    @thrice.kernel("cpu", ow.Domain(dtypes=(torch.float64,)))
    def slow(x: Tensor) -> Tensor:
        return 3 * x

    for device in ("cpu", "cuda", "cpu"):
        thrice.kernel_source(device, "// nothing yet", name="fast")
    assert [(k.device, k.name) for k in thrice.spec.kernels] == [("cpu", "slow"), ("cpu", "fast"), ("cuda", "fast")]
    with pytest.raises(ValueError, match="it has a kernel 'slow' for cpu, which is of no string; choose another name"):
        thrice.kernel_source("cpu", "// nothing yet", name="slow")


WRITTEN = '''
plain = """
one
two"""
below = """\\
one
two"""
escaped = "one\\ntwo"
joined = """
one \\
two
three"""
'''


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("\none\ntwo", 3, "{file}:4:1"),
        ("one\ntwo", 2, "{file}:7:1"),
        ("\none two\nthree", 3, "string 1, line 3"),  # its lines are not those of the script
    ],
)
def test_a_line_of_a_string_is_that_of_the_script_or_is_counted_in_the_string(
    text: str, line: int, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    file.write_text(WRITTEN, encoding="utf-8")
    linecache.checkcache(str(file))
    place = places.Place(text, "string 1", str(file), 5)
    assert place.spoken(line, ":1") == said.format(file=file)


def test_a_string_with_escapes_is_counted_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(r'source = "one\ntwo"' + "\n", encoding="utf-8")
    assert places.Place("one\ntwo", "string 1", str(file), 1).spoken(2, ":1") == "string 1, line 2"


def test_half_a_character_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"a source string holds '\\ud800', which is half of a character"):
        strings.keep({"a.cpp": "// \ud800"})


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({}, r"name the functions to give.*strings that bind their own are for options=ow\.Options\(abi='aten'\)"),
        ({"functions": ["gone"], "options": ow.Options(abi="aten")}, "the sources define no function 'gone'"),
    ],
)
def test_functions_that_cannot_be_given_are_told_before_anything_is_built(keywords: Any, said: str) -> None:
    with pytest.raises((ValueError, ow.BuildError), match=said):
        ow.inline("torch::Tensor there(torch::Tensor x) { return x; }", **keywords)


def test_the_magic_takes_flags_in_two_words_and_folders_from_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(magic, "inline", lambda **keywords: given.update(keywords) or ow.kit.inline.Functions())
    shell: Any = type("Shell", (), {"push": lambda self, names: None})()
    magic._magic(shell, "cpp")("f -D FACTOR=3 -I .", "")
    assert (given["functions"], given["options"].cxxflags) == (["f"], ("-DFACTOR=3", "-I."))
    from opwright.kit.dispatch.sourced import beside

    assert beside(given["options"], tmp_path, ()).cxxflags == ("-DFACTOR=3", f"-I{tmp_path}")
