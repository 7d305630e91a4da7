"""Extensions that exist: built unchanged, as torch.utils.cpp_extension builds them, by opwright's cache."""

from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit.build import cache, compile, header, program, registered, toolchain, trial
from opwright.kit.build.plan import Plan
from opwright.kit.spec.options import Options
from tests.kit.build.workshop import Workshop

EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples" / "extension"

# Without torch/extension.h, which takes ten times as long to compile and is tried by what is slow.
MODULE = """
#include <pybind11/pybind11.h>
#include "answer.h"
struct Box { int value; };
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("answer", [] { return ANSWER; });
    pybind11::class_<Box>(m, "Box", pybind11::module_local())
        .def(pybind11::init<int>())
        .def_readwrite("value", &Box::value)
        .def(pybind11::pickle([](const Box& b) { return b.value; }, [](int value) { return Box{value}; }));
}
"""


@pytest.fixture(autouse=True)
def _no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a compiler running behind it."""
    monkeypatch.setenv("OPWRIGHT_PCH", "0")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "box.cpp").write_text(MODULE, encoding="utf-8")
    (tmp_path / "answer.h").write_text("#define ANSWER 42\n", encoding="utf-8")
    return tmp_path


def test_a_module_is_built_once_and_again_when_a_header_changes(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sources / "out"
    folder.mkdir()
    made = ow.load_extension(str(sources / "box.cpp"), name="box_of_mine", build_directory=folder)
    assert isinstance(made, ModuleType)
    assert (made.__name__, made.answer(), made.Box(3).value) == ("box_of_mine", 42, 3)
    assert pickle.loads(pickle.dumps(made.Box(5))).value == 5
    assert [f.name for f in folder.iterdir()] == ["box_of_mine.so"]
    monkeypatch.setenv("OPWRIGHT_BUILD", "0")  # nothing more is built
    assert ow.load_extension([sources / "box.cpp"], name="box_of_mine") is made
    (sources / "answer.h").write_text("#define ANSWER 44\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match="OPWRIGHT_BUILD=0 forbids building"):
        ow.load_extension(sources / "box.cpp", name="box_of_mine")
    monkeypatch.delenv("OPWRIGHT_BUILD")
    (sources / "answer.h").write_text("#define ANSWER 43\n", encoding="utf-8")
    again = ow.load_extension(sources / "box.cpp", name="box_of_mine")
    assert (again.answer(), made.answer()) == (43, 42)  # the former one is still what it was
    assert sys.modules["box_of_mine"] is again
    (sources / "answer.h").write_text("#define ANSWER 42\n", encoding="utf-8")
    other = sources / "other"
    other.mkdir()
    assert ow.load_extension(sources / "box.cpp", name="box_of_mine", build_directory=other) is made
    assert sys.modules["box_of_mine"] is made
    assert [f.name for f in other.iterdir()] == ["box_of_mine.so"]


def test_flags_are_read_as_a_shell_reads_them_and_what_fails_at_its_import_says_why(sources: Path) -> None:
    text = MODULE.replace('"answer.h"', "<cstring>").replace("return ANSWER;", "return std::strlen(WORD);")
    (sources / "box.cpp").write_text(text, encoding="utf-8")
    made = ow.load_extension(sources / "box.cpp", name="box_flags", extra_cflags=["-O0 -w", "-DWORD='\"hello\"'"])
    assert made.answer() == 5
    broken = text.replace('m.def("answer"', 'pybind11::module_::import("nowhere_at_all");\n    m.def("answer"')
    (sources / "box.cpp").write_text(broken, encoding="utf-8")
    with pytest.raises(ow.BuildError, match=r"cannot be loaded.*No module named 'nowhere_at_all'"):
        ow.load_extension(sources / "box.cpp", name="box_broken", extra_cflags=["-O0 -w", "-DWORD='\"hello\"'"])


def test_a_source_that_does_not_compile_is_shown_and_can_be_mended(sources: Path) -> None:
    (sources / "answer.h").write_text("#define ANSWER nowhere\n", encoding="utf-8")
    with pytest.raises(ow.BuildError, match=r"answer\.h:1:\d+: error: 'nowhere' was not declared"):
        ow.load_extension(sources / "box.cpp", name="box_of_mine")


OPERATOR = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
torch::stable::Tensor same(torch::stable::Tensor x) { return x; }
void boxed(StableIValue* stack, uint64_t, uint64_t) {}
STABLE_TORCH_LIBRARY(extension_ops, m) { m.def("same(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(extension_ops, CompositeExplicitAutograd, m) { m.impl("same", &boxed); }
"""


def test_registrations_take_effect_and_other_ones_under_their_names_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "ops.cpp"
    file.write_text(OPERATOR, encoding="utf-8")
    path = ow.load_extension(file, name="extension_ops", is_python_module=False)
    assert Path(path).is_file()
    assert torch.ops.extension_ops.same(torch.ones(2)).tolist() == [1.0, 1.0]
    assert ow.load_extension(file, name="extension_ops", is_python_module=False) == path
    file.write_text(OPERATOR + "// edited\n", encoding="utf-8")
    for name in ("extension_ops", "another_name"):
        with pytest.raises(
            ow.BuildError, match=f"{name}: ops.cpp registers extension_ops::same, which this process has"
        ):
            ow.load_extension(file, name=name, is_python_module=False)
    assert torch.ops.extension_ops.same(torch.ones(2)).tolist() == [1.0, 1.0]


def test_what_a_library_registers_is_asked_of_it_and_not_read_from_its_source(tmp_path: Path) -> None:
    """Its source hides the namespace and the schema from whoever only reads it."""
    hidden = OPERATOR.replace("extension_ops", "SPACE").replace('m.def("same', 'm.def(""\n"same')
    hidden = "#define SPACE hidden_ops\n" + hidden
    file = tmp_path / "ops.cpp"
    file.write_text(hidden, encoding="utf-8")
    with pytest.raises(ow.BuildError, match=r"make no Python module of that name.*is_python_module=False"):
        ow.load_extension(file, name="hidden_ops")
    ow.load_extension(file, name="hidden_ops", is_python_module=False)  # as it said
    file.write_text(hidden + "// edited\n", encoding="utf-8")
    with pytest.raises(ow.BuildError, match="hidden_ops: it registers hidden_ops::same, which this process has"):
        ow.load_extension(file, name="hidden_ops", is_python_module=False)
    assert torch.ops.hidden_ops.same(torch.ones(2)).tolist() == [1.0, 1.0]


def test_a_schema_that_does_not_parse_is_an_error_and_the_process_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "ops.cpp"
    file.write_text(OPERATOR.replace("extension_ops", "bad_ops").replace("x) ->", "x ->"), encoding="utf-8")
    with pytest.raises(ow.BuildError, match="bad_ops: it is built, and what it registers ends the process that loads"):
        ow.load_extension(file, name="bad_ops", is_python_module=False)
    assert not hasattr(torch.ops.bad_ops, "same")


def test_classes_that_pytorch_would_take_for_one_another_are_told_apart(tmp_path: Path) -> None:
    """As the classes of two libraries: by their names in C++, unless they are in an unnamed namespace."""
    library = tmp_path / "library.so"
    content = b"_ZN5torch7LibraryC\0N3c1014tagged_capsuleI3BoxEE\0*N3c1014tagged_capsuleIN12_GLOBAL__N_13OwnEEE\0"
    library.write_bytes(content)
    found = trial.registrations("boxes", library)
    assert found == {"types": ["3Box"]}  # what cannot be loaded registers nothing
    one, two = (cache.Entry(library, {"key": key, "registers": found}) for key in ("k1", "k2"))
    registered._types["3Box"] = "boxes_one"
    try:
        with pytest.raises(ow.BuildError, match=r"its class Box has the name in C\+\+ of a class of boxes_one"):
            registered.opening("boxes_two", two)
        registered._opened.add("k1")
        registered.opening("boxes_one", one)
    finally:
        registered._types.clear()
        registered._opened.discard("k1")


def test_what_is_no_module_says_so(tmp_path: Path) -> None:
    (tmp_path / "none.cpp").write_text("int value;\n", encoding="utf-8")
    with pytest.raises(ow.BuildError, match=re.escape("write PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)")):
        ow.load_extension(tmp_path / "none.cpp", name="none_of_it")
    (tmp_path / "none.cpp").write_text("namespace far { void away(int); } void* here = (void*)far::away;\n")
    with pytest.raises(ow.BuildError, match=re.escape("nothing defines far::away(int); add the source that does")):
        ow.load_extension(tmp_path / "none.cpp", name="none_of_it")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"sources": [], "name": "a"}, ValueError, "a: there is nothing to build"),
        ({"sources": "away.cpp", "name": "a"}, FileNotFoundError, "a: there is no source"),
        (
            {"sources": "box.cpp", "name": "a-b"},
            ValueError,
            "the name becomes that of a module, such as 'lltm', got 'a-b'",
        ),
        ({"sources": 3, "name": "a"}, TypeError, "a: sources must be a tuple of paths, got 3"),
        ({"sources": "box.cpp", "name": "a", "extra_cflags": "-O2"}, TypeError, "write extra_cflags=('-O2',)"),
        ({"sources": "box.cpp", "name": "a", "build_directory": "away"}, FileNotFoundError, "no build_directory"),
        ({"sources": ["box.cpp", "answer.h"], "name": "a"}, ValueError, "a: answer.h is a header, and no source"),
        ({"sources": ["box.cpp", __file__], "name": "a"}, ValueError, "test_extension.py is no source of C++ or CUDA"),
        ({"sources": "box.cpp", "name": "a", "extra_cflags": ["-DA='"]}, ValueError, "are read as a shell reads them"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: dict[str, Any], error: type, said: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources)
    with pytest.raises(error, match=re.escape(said)):
        ow.load_extension(**arguments)


def test_sources_that_others_can_write_are_refused(sources: Path) -> None:
    (sources / "answer.h").chmod(0o666)
    with pytest.raises(PermissionError, match=r"answer\.h can be written by everybody"):
        ow.load_extension(sources / "box.cpp", name="box_of_mine")
    (sources / "answer.h").chmod(0o644)
    sources.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by everybody"):
        ow.load_extension(sources / "box.cpp", name="box_of_mine")
    sources.chmod(0o755)


def test_a_plan_has_the_flags_of_cpp_extension_and_no_other(sources: Path) -> None:
    cpp_extension = __import__("torch.utils.cpp_extension", fromlist=["COMMON_NVCC_FLAGS"])
    options = Options(abi="aten", cxxflags=("-O2",), nvccflags=("-arch=sm_90",))
    plan = Plan("box", (sources / "box.cpp", sources / "k.cu"), options, device="cuda", extension=True)
    assert plan.flags == ("-std=c++20", "-fPIC", "-O2")
    assert {*cpp_extension.COMMON_NVCC_FLAGS} <= {*plan.nvccflags}
    assert plan.arch == ()  # what nvcc was told in its own words
    assert plan.includes[:-1] == ()


def test_what_comes_before_the_header_says_whether_it_can_be_precompiled(tmp_path: Path) -> None:
    file = tmp_path / "a.cpp"
    texts = {
        "#include <torch/extension.h>\n": True,
        "// why\n/* and\nhow */\n#include <vector>\n#include <torch/extension.h>\n": True,
        '#include "mine.h"\n#include <torch/extension.h>\n': False,
        "#define X\n#include <torch/extension.h>\n": False,
        "#include <torch/torch.h>\n#include <torch/extension.h>\n": False,
        "#include <vector>\n": False,
    }
    for text, begins in texts.items():
        file.write_text(text, encoding="utf-8")
        assert header.begins(Plan("a", (file,), extension=True), file) is begins, text
    # In angle brackets too, a header of the project may set what PyTorch's look at.
    (tmp_path / "vector").write_text("#define STRIP_ERROR_MESSAGES 1\n", encoding="utf-8")
    file.write_text("#include <vector>\n#include <torch/extension.h>\n", encoding="utf-8")
    for options in (Options(include=(str(tmp_path),)), Options(cxxflags=("-isystem", str(tmp_path)))):
        assert not header.begins(Plan("a", (tmp_path / "src" / "a.cpp",), options, extension=True), file)


def test_the_header_is_one_for_its_flags_and_can_be_switched_off(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sources / "a.cpp"
    file.write_text("#include <torch/extension.h>\n", encoding="utf-8")

    def plan(name: str, *flags: str) -> Plan:
        defines = (f"TORCH_EXTENSION_NAME={name}", "TORCH_API_INCLUDE_EXTENSION_H")
        return Plan(name, (file,), Options(abi="aten", cxxflags=flags), defines, extension=True)

    assert header.of(plan("one")).key == header.of(plan("two")).key != header.of(plan("one", "-O2")).key
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **how: started.append((command, how)))
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(sources / "cache"))
    monkeypatch.setattr(toolchain, "free_memory", lambda: 64 << 30)
    header.start(plan("one"))
    assert started == []  # OPWRIGHT_PCH=0
    monkeypatch.delenv("OPWRIGHT_PCH")
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", "1G")
    header.start(plan("one"))
    assert started == []  # there is no room
    monkeypatch.delenv("OPWRIGHT_CACHE_SIZE")
    header.start(plan("one"))
    ((command, how),) = started
    assert command[-3:-1] == ["-m", "opwright.kit.build.header"]
    assert how["start_new_session"]
    assert header.flags(plan("one"), cache.open_folder()) == []


def test_a_precompiled_header_is_used_counted_and_left_when_it_is_damaged(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a small header in the place of PyTorch's: what is tried is the way around it."""
    includes = sources / "torch_includes"
    (includes / "torch").mkdir(parents=True)
    (includes / "torch" / "extension.h").write_text("#pragma once\ninline int precompiled() { return 7; }\n")
    monkeypatch.setattr(toolchain, "torch_includes", lambda: [includes])
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(sources / "cache"))
    monkeypatch.delenv("OPWRIGHT_PCH")
    file = sources / "seven.cpp"
    file.write_text("#include <torch/extension.h>\nint seven = precompiled();\n", encoding="utf-8")
    plan = Plan("seven", (file,), Options(abi="aten"), ("TORCH_EXTENSION_NAME=seven",), extension=True)
    root = cache.open_folder()
    header.make(plan)
    (entry,) = [e for e in cache.entries(root) if e.about["name"] == header.NAME]
    compiled = entry.library.parent / header.COMPILED
    assert entry.size > compiled.stat().st_size > 10_000
    assert header.flags(plan, root) == ["-include", str(entry.library.parent / header.HEADER)]
    commands: list[list[str]] = []
    run: Callable[..., Any] = program.run

    def watched(command: list[str], **how: Any) -> Any:
        commands.append(command)
        return run(command, **how)

    monkeypatch.setattr(program, "run", watched)
    compile.build(plan)
    assert any("-include" in command for command in commands)
    compiled.write_bytes(compiled.read_bytes()[:5000])
    assert header.flags(plan, root) == []  # not as it was made
    assert header.NAME not in [e.about["name"] for e in cache.entries(root)]


def test_what_makes_the_header_is_nobodys_child(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that take warnings for errors would fail at a child that is still running."""
    told, go, maker = sources / "told", sources / "go", sources / "python"
    says = f"echo $PPID $OPWRIGHT_CACHE_DIR $PYTHONPATH > {told}.part; mv {told}.part {told}"
    maker.write_text(f"#!/bin/sh\nuntil [ -e {go} ]; do sleep 0.02; done\n{says}\n")
    maker.chmod(0o755)
    (sources / "a.cpp").write_text("#include <torch/extension.h>\n", encoding="utf-8")
    monkeypatch.chdir(sources)
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", "cache")
    monkeypatch.delenv("OPWRIGHT_PCH")
    monkeypatch.setattr(toolchain, "free_memory", lambda: 64 << 30)
    monkeypatch.setattr(sys, "executable", str(maker))
    monkeypatch.syspath_prepend(str(sources))
    header.start(Plan("a", (sources / "a.cpp",), Options(abi="aten"), extension=True))
    gc.collect()  # a child that nobody has waited for would be warned of
    go.touch()
    since = time.monotonic()
    while not told.exists():
        assert time.monotonic() - since < 30
        time.sleep(0.02)
    parent, kept, path = told.read_text().split(maxsplit=2)
    assert int(parent) != os.getpid()
    assert kept == str(sources / "cache")
    assert path.startswith(str(sources))


def test_processes_that_need_one_extension_build_it_once(workshop: Workshop, sources: Path) -> None:
    code = f"import opwright as ow; print(ow.load_extension({str(sources / 'box.cpp')!r}, name='box').answer())"
    environment = {**workshop.environment, "OPWRIGHT_PCH": "0"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(3)
    ]
    said = [p.communicate(timeout=240) for p in started]
    assert [out for out, _ in said] == ["42\n"] * 3
    assert sum("built box in" in err for _, err in said) == 1
    assert not list((workshop.cache / "building").iterdir())


# --- slow: torch/extension.h --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_tutorials_extension_runs_and_the_check_finds_what_it_loses() -> None:
    lltm_step = ow.load(EXAMPLES / "lltm_step.py").lltm_step
    report = ow.check(lltm_step, only=["forward", "gradients", "adopted"])
    assert {f.property for f in report.failures} == {"adopted"}
    assert "its own second derivative, with respect to x, is wrong without a word" in report.failures[0].message


@pytest.mark.slow
def test_strings_of_load_inline_run_unchanged() -> None:
    made = ow.inline(
        "torch::Tensor sin_add(torch::Tensor x, torch::Tensor y) { return x.sin() + y.sin(); }",
        functions={"sin_add": 'adds "sines"'},
        options=ow.Options(abi="aten"),
    )
    x = torch.rand(2, requires_grad=True)
    out = made.sin_add(x, x)
    out.sum().backward()  # PyTorch's own operators record, as they do there
    assert torch.equal(out, 2 * x.sin())
    assert torch.allclose(x.grad, 2 * x.cos())  # type: ignore[arg-type]
    assert "sines" in made.sin_add.__doc__
