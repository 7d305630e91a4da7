"""Extensions that exist: built unchanged, as torch.utils.cpp_extension builds them, by opwright's cache."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit.build import cache, compile, header, program, toolchain
from opwright.kit.build.plan import Plan
from opwright.kit.spec.options import Options
from tests.kit.build.nvcc import needs_nvcc
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
        assert header.begins(file) is begins, text


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
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: started.append((command, how)))
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
    assert command[1:3] == ["-m", "opwright.kit.build.header"]
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


@pytest.mark.slow
@needs_nvcc
def test_the_extension_for_cuda_builds_and_loads_without_a_gpu() -> None:
    sources = [EXAMPLES / "lltm_cuda.cpp", EXAMPLES / "lltm_cuda_kernel.cu"]
    made = ow.load_extension(sources, name="lltm_cuda", extra_cuda_cflags=["-gencode=arch=compute_90,code=sm_90"])
    with pytest.raises(RuntimeError, match="x must be a CUDA tensor"):
        made.forward(*(torch.ones(2, 2) for _ in range(5)))
