"""Functions from source strings: what they write to, what they include, and where an error in them is found."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright import magic
from opwright.kit.build import places, strings, trouble

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
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.h").write_text("#define BESIDE 5.0f\n", encoding="utf-8")
    given: dict[str, Any] = {}
    shell: Any = SimpleNamespace(push=given.update)
    build = magic._magic(shell, "cpp")
    cell = """#include <opwright/kernel.h>
#include "beside.h"
Tensor f(const Tensor& x) { return map([](float v) { return v * BESIDE * FACTOR; }, x); }
"""
    build("f -D FACTOR=3 -I .", cell)
    assert given["f"](torch.ones(1)).item() == 15.0
    with pytest.raises(Exception, match="name the functions to give beside the magic, such as %%cpp f"):
        build("-O1", cell)
    with pytest.raises(Exception, match="No closing quotation") as told:
        build('f "', cell)
    assert type(told.value) is type(magic.shell_error(""))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "Tensor f(const Tensor& x) {\n    return map([](auto v) { return v; }, x);\n}",
            "cpp_sources, line 2: error: the function must name the types of its parameters, as [](float v) does\n"
            "    2 |     return map([](auto v) { return v; }, x);",
        ),
        (
            "Tensor f(const Tensor& x) {\n    return map([](float v, float w) { return v; }, x);\n}",
            "cpp_sources, line 2: error: one parameter an input\n    2 |     return map([](float v, float w)",
        ),
        (
            "Tensor f(Tensor x) { return x; }\nTensor f(Tensor x, double by) { return x; }",
            "error: a function that is bound must be no template, and the only one of its name\n"
            "    4 | OPWRIGHT_KERNEL(f, CPU, f);",
        ),
        (
            "int64_t f(Tensor x) { return 1; }",
            "Whatever else pybind11 converts can be taken and returned with options=ow.Options(abi='aten')",
        ),
    ],
)
def test_what_a_header_says_is_told_of_the_line_that_uses_it(source: str, said: str) -> None:
    with pytest.raises(ow.BuildError) as told:
        ow.inline(source, functions=["f"])
    assert said in str(told.value)


def test_messages_of_clang_and_nvcc_name_the_authors_line_too() -> None:
    header = "/site-packages/opwright/include/opwright/map.h"
    clang = [
        f"{header}:49:5: error: static assertion failed: one parameter an input",
        f"{header}:64:20: note: in instantiation of function template specialization 'map_into<F>' requested here",
        "/mine/cpu.cpp:4:15: note: in instantiation of function template specialization 'map<F>' requested here",
    ]
    assert trouble.first_message("\n".join(clang)) == "/mine/cpu.cpp:4:15: error: one parameter an input"
    nvcc = [
        f'{header}(49): error: static assertion failed with "one parameter an input"',
        "          detected during:",
        '            instantiation of "const Tensor& map_into(F)" at line 64',
        '            instantiation of "Tensor map(F)" at line 4 of /mine/cuda.cu',
    ]
    assert trouble.first_message("\n".join(nvcc)) == "/mine/cuda.cu(4): error: one parameter an input"
