"""Kernels and functions from source strings, in scripts and in notebooks."""

from __future__ import annotations

import linecache
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright import magic
from opwright.kit.build import cache, compile, places, strings
from opwright.kit.build.trouble import WrongKernel
from tests.kit.build.workshop import Workshop

# The string of kernel_source's own docstring, so that it is built once for both.
THRICE = """
#include <opwright/kernel.h>
Tensor thrice_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([](C v) { return 3 * v; }, x);
    });
}
OPWRIGHT_KERNEL(thrice, CPU, thrice_cpu);
"""
FLOATS = ow.Domain(dtypes=ow.FLOATING)


def define() -> ow.Op[..., Any]:
    @ow.op(name="thrice")
    def thrice(x: Tensor) -> Tensor:
        return 3 * x

    return thrice


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled from now on."""
    built: list[str] = []
    run: Callable[..., Any] = compile._compile

    def watched(plan: Any, *rest: Any) -> Any:
        built.append(plan.name)
        return run(plan, *rest)

    monkeypatch.setattr(compile, "_compile", watched)
    return built


def test_a_kernel_from_a_string_runs_and_an_edited_one_takes_its_place() -> None:
    op = define()
    op.kernel_source("cpu", THRICE, FLOATS)
    assert op(torch.ones(2)).tolist() == [3.0, 3.0]
    assert [k.name for k in op.kernels] == ["cpu source"]
    assert "cpu source" in str(ow.explain(op, torch.ones(2)))
    op.kernel_source("cpu", THRICE.replace("3 * v", "30 * v"), FLOATS)  # the cell is run again, edited
    assert [op(torch.ones(2)).tolist() for _ in range(2)] == [[30.0, 30.0]] * 2
    assert len(op.kernels) == 1
    op.kernel_source("cpu", THRICE, FLOATS)  # and as it was
    assert op(torch.ones(2)).tolist() == [3.0, 3.0]


def test_the_same_string_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    define().kernel_source("cpu", THRICE, FLOATS)
    built = counting(monkeypatch)
    for _ in range(2):
        op = define()
        op.kernel_source("cpu", THRICE, FLOATS)
        assert op(torch.ones(2)).tolist() == [3.0, 3.0]
    assert built == []


@pytest.mark.slow
def test_a_string_and_its_gradient_are_checked_like_a_file() -> None:
    @ow.op(name="cubed")
    def cubed(x: Tensor) -> Tensor:
        return x**3

    @cubed.gradient
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return 3 * grad * x * x

    def mapped(name: str, body: str, takes: str) -> str:
        given = ", ".join(f"const Tensor& {t}" for t in takes.split())
        values = ", ".join(f"C {t}" for t in takes.split())
        wanted = ", const Wanted&" if "backward" in name else ""
        call = f"map([]({values}) {{ return {body}; }}, {takes.replace(' ', ', ')})"
        return (
            f"Tensor {name}_cpu({given}{wanted}) {{ return compute({takes.split()[0]}, [&](auto zero) "
            f"{{ using C = decltype(zero); return {call}; }}); }}\nOPWRIGHT_KERNEL({name}, CPU, {name}_cpu);\n"
        )

    source = "#include <opwright/kernel.h>\n" + mapped("cubed", "x * x * x", "x")
    source += mapped("cubed_backward", "3 * grad * x * x", "grad x")
    cubed.kernel_source("cpu", source, FLOATS, backward=FLOATS)
    x = torch.tensor([2.0], requires_grad=True)
    cubed(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [12.0]
    assert [k.name for k in cubed.backward.kernels] == ["cpu source"]


BAD = """
#include <opwright/kernel.h>
Tensor thrice_cpu(const Tensor& x) {
    return nowhere(x);
}
OPWRIGHT_KERNEL(thrice, CPU, thrice_cpu);
"""
BAD_LINE = next(i for i, line in enumerate(linecache.getlines(__file__), 1) if "nowhere(x)" in line)


def test_an_error_names_the_line_of_the_script_and_the_operator_goes_on_once_it_is_mended() -> None:
    op = define()
    op.kernel_source("cpu", BAD, FLOATS)
    for _ in range(2):
        with pytest.raises(ow.BuildError, match=re.escape(f"{__file__}:{BAD_LINE}:")) as caught:
            op(torch.ones(2))
        assert f"{BAD_LINE} |     return nowhere(x);" in str(caught.value)
        assert "sources/" not in str(caught.value)
    op.kernel_source("cpu", THRICE, FLOATS)
    assert op(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_string_that_binds_something_else_is_refused_by_name() -> None:
    op = define()
    op.kernel_source("cpu", THRICE.replace("(thrice,", "(twice,"), FLOATS)
    with pytest.raises(WrongKernel, match="string 1 of thrice's kernel binds no kernel to it; it binds twice"):
        op(torch.ones(2))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("gpu", THRICE), ValueError, "thrice: the device of a source string must be 'cpu' or 'cuda', got 'gpu'"),
        (("cpu", ""), TypeError, "needs at least one"),
        (("cpu", 3), TypeError, "thrice: sources must be a tuple of strings, got 3"),
        (("cpu", [3]), TypeError, "thrice: sources must be strings of C++, got 3"),
        (("cpu", THRICE, None), TypeError, "must be an ow.Domain"),
        (("cpu", THRICE, FLOATS, "-O3"), TypeError, "options must be ow.Options"),
    ],
)
def test_what_is_no_source_is_refused_and_nothing_is_declared(arguments: Any, error: type, said: str) -> None:
    op = define()
    with pytest.raises(error, match=re.escape(said)):
        op.kernel_source(*arguments)
    assert op.kernels == []


# --- functions without an operator ------------------------------------------------------------------------------

SOURCES = [
    "namespace { double half() { return 0.5; } }",
    """
Tensor halved(const Tensor& x, double more) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([by = C(half() + more)](C v) { return by * v; }, x);
    });
}
std::tuple<Tensor, Tensor> both(const Tensor& x) { return {x, x}; }
std::vector<Tensor> none() { return {}; }
Tensor declared(const Tensor& x);
""",
]


def test_functions_of_strings_are_called_and_the_callers_list_stays_as_it_is() -> None:
    before = list(SOURCES)
    made = ow.inline(SOURCES, functions={"halved": "half of x", "both": "", "none": ""})
    assert before == SOURCES
    assert made.none() == []
    assert made.halved(torch.ones(2), 0.0).tolist() == [0.5, 0.5]
    assert made.halved(torch.ones(2), 1).tolist() == [1.5, 1.5]
    assert len(made.both(torch.ones(1))) == 2
    assert made.halved.__doc__.startswith("half of x\nhalved(Tensor, float) -> Tensor")
    assert ow.inline(tuple(SOURCES), functions={"halved": "half of x", "both": "", "none": ""}) is made
    found = []
    threads = [threading.Thread(target=lambda: found.append(made.halved(torch.ones(1), 0.5).item())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1.0] * 4
    compiled = torch.compile(lambda x: made.halved(x + 1, 0.0) * 2, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_function_without_a_gradient_says_so_when_it_is_differentiated() -> None:
    made = ow.inline(SOURCES, functions={"halved": "half of x", "both": "", "none": ""})
    x = torch.ones(2, requires_grad=True)
    out = made.halved(x, 0.0)
    with pytest.raises(RuntimeError, match="halved: it has no gradient, as a function of source strings"):
        out.sum().backward()
    with torch.no_grad():
        assert not made.halved(x, 0.0).requires_grad


def by_hand(f: Callable[..., Any]) -> None:
    with torch.autograd.forward_ad.dual_level():
        f(torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2)))


ASKED: dict[str, Callable[[Callable[..., Any], Tensor], Any]] = {
    "grad": lambda f, x: torch.autograd.grad((f(x) + x).sum(), x),
    "unused": lambda f, x: torch.autograd.grad(f(x).sum(), x, allow_unused=True),
    "inputs": lambda f, x: (f(x) * x).sum().backward(inputs=[x]),
    "func.grad": lambda f, x: torch.func.grad(lambda v: (f(v) + v).sum())(x.detach()),
    "func.jvp": lambda f, x: torch.func.jvp(lambda v: f(v) + v, (x.detach(),), (torch.ones(2),)),
    "forward_ad": lambda f, x: by_hand(f),
    "vmap": lambda f, x: torch.func.vmap(torch.func.grad(lambda v: (f(v) + v).sum()))(torch.ones(2, 2)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("way", ASKED)
def test_a_gradient_that_is_not_there_is_refused_in_whatever_way_it_is_asked_for(way: str) -> None:
    made = ow.inline(SOURCES, functions={"halved": "half of x", "both": "", "none": ""})
    with pytest.raises(RuntimeError, match="halved: it has no gradient, as a function of source strings"):
        ASKED[way](lambda x: made.halved(x, 0.0), torch.ones(2, requires_grad=True))


def test_a_result_without_a_gradient_can_be_written_to() -> None:
    made = ow.inline(SOURCES, functions={"halved": "half of x", "both": "", "none": ""})
    out = made.halved(torch.ones(2, requires_grad=True), 0.0)
    assert out.mul_(4).tolist() == [2.0, 2.0]


def test_a_function_that_is_declared_and_not_defined_is_told_by_name() -> None:
    with pytest.raises(ow.BuildError, match=r"the sources declare declared\(torch::stable::Tensor const&\), and none"):
        ow.inline(SOURCES, functions="declared")


def test_calls_with_other_arguments_are_refused() -> None:
    made = ow.inline(SOURCES, functions={"halved": "half of x", "both": "", "none": ""})
    with pytest.raises(TypeError, match=re.escape("halved: it takes 2 arguments (Tensor, float), got 1")):
        made.halved(torch.ones(2))
    with pytest.raises(TypeError, match="halved: argument 2 must be a float, got str"):
        made.halved(torch.ones(2), "much")
    with pytest.raises(NotImplementedError, match="halved: it is built for cpu, got a tensor on meta"):
        made.halved(torch.ones(2, device="meta"), 0.0)
    with pytest.raises(TypeError, match="halved: argument 1 must be a Tensor, got None"):
        made.halved(None, 0.0)
    with pytest.raises(
        TypeError, match=r"halved: argument 1 must be a strided Tensor, got one of layout torch\.sparse_c"
    ):
        made.halved(torch.eye(2).to_sparse(), 0.0)
    with pytest.raises(RuntimeError, match="halved: no kernel for int32"):
        made.halved(torch.ones(2, dtype=torch.int32), 0.0)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"cpp_sources": "", "functions": "f"}, ValueError, "there is nothing to build"),
        ({"cpp_sources": "Tensor f();", "functions": []}, ValueError, "name the functions to give"),
        ({"cpp_sources": "Tensor f();", "functions": "f;"}, ValueError, "one of C++, got 'f;'"),
        ({"cpp_sources": "Tensor _dir();", "functions": "_dir"}, ValueError, "'_dir' has a use of its own in Python"),
        ({"cpp_sources": "Tensor __f__();", "functions": "__f__"}, ValueError, "'__f__' has a use of its own"),
        ({"cpp_sources": b"int i;", "functions": "f"}, TypeError, "must be strings of C++, got b'int i;'"),
        ({"cpp_sources": 3, "functions": "f"}, TypeError, "cpp_sources must be a tuple of strings, got 3"),
        ({"cpp_sources": "Tensor f();", "functions": {"f": 3}}, TypeError, "f's docstring must be a string, got 3"),
        ({"cpp_sources": "Tensor f();", "functions": "f", "options": 3}, TypeError, "options must be ow.Options"),
        (
            {"cpp_sources": "Tensor fun(int x) {", "functions": "fum"},
            ow.BuildError,
            "no function 'fum'; did you mean fun",
        ),
    ],
)
def test_what_cannot_be_inlined_is_refused_before_anything_is_built(
    arguments: Any, error: type, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = counting(monkeypatch)
    with pytest.raises(error, match=re.escape(said)):
        ow.inline(**arguments)
    assert built == []


def test_headers_that_others_can_write_are_refused(tmp_path: Path) -> None:
    (tmp_path / "half.h").write_text("#pragma once\n", encoding="utf-8")
    (tmp_path / "half.h").chmod(0o666)
    source, options = (
        '#include "half.h"\nTensor same(const Tensor& x) { return x; }',
        ow.Options(include=(str(tmp_path),)),
    )
    with pytest.raises(PermissionError, match=r"half\.h can be written by everybody"):
        ow.inline(source, functions="same", options=options)
    op = define()
    op.kernel_source("cpu", source, FLOATS, options)
    with pytest.raises(PermissionError, match=r"half\.h can be written by everybody"):
        op(torch.ones(2))


def test_strings_of_load_inline_are_told_what_they_need() -> None:
    with pytest.raises(ow.BuildError, match=re.escape("options=ow.Options(abi='aten')")) as caught:
        ow.inline("torch::Tensor f(torch::Tensor x) { return x; }", functions="f")
    assert f"{Path(__file__)}:" in str(caught.value)


@pytest.mark.slow
def test_another_process_finds_what_is_built_and_a_failure_is_tried_again(workshop: Workshop) -> None:
    code = "import torch, opwright as ow; print(ow.inline('''{}''', functions='f').f(torch.ones(1)).item())"
    bad, good = "Tensor f(const Tensor& x) { return y; }", "Tensor f(const Tensor& x) { return x; }"
    assert "python -c" not in (first := workshop.run(code.format(bad))).stderr
    assert "cpp_sources, line 1: error: 'y' was not declared" in first.stderr
    assert "it does not compile" in workshop.run(code.format(bad)).stderr
    built = workshop.run(code.format(good))
    assert (built.stdout, "built inline.cpp" in built.stderr) == ("1.0\n", True)
    again = workshop.run(code.format(good))
    assert (again.stdout, again.stderr) == ("1.0\n", "")
    assert "OPWRIGHT_BUILD=0 forbids building" in workshop.run(code.format(good + "\n"), OPWRIGHT_BUILD="0").stderr
    for folder in (workshop.cache / strings.SOURCES).iterdir():
        assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_check_takes_a_kernel_from_a_string_to_its_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = "import torch, opwright as ow\n\n@ow.op\ndef thrice(x: torch.Tensor) -> torch.Tensor:\n    return 3 * x\n"
    text += f"\nSOURCE = '''{THRICE.replace('3 * v', 'v * (v < C(1.5) ? C(3) : C(4))')}'''\n"
    text += "thrice.kernel_source('cpu', SOURCE, ow.Domain(dtypes=(torch.float32,)))\n"
    text += "if __name__ == '__main__':\n    print(ow.check(thrice, only=['forward']).failures[0].message)\n"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=240)
    assert "the result is wrong in" in done.stdout, done.stderr


def test_a_kept_string_is_written_whole_and_marked_when_it_is_used() -> None:
    folder = strings.keep({"a.cpp": "int a;", "b.h": "int b;"})
    assert {f.name: f.read_text() for f in folder.iterdir()} == {"a.cpp": "int a;", "b.h": "int b;"}
    assert (
        strings.keep({"a.cpp": "int a;", "b.h": "int b;"})
        == folder
        != strings.keep({"a.cpp": "int a;int b;", "b.h": ""})
    )
    assert strings.is_kept(folder / "a.cpp")
    assert not strings.is_kept(Path(__file__))
    (folder / "a.cpp").write_text("int c;")
    assert (strings.keep({"a.cpp": "int a;", "b.h": "int b;"}) / "a.cpp").read_text() == "int a;"
    assert folder.is_relative_to(cache.folder())


def test_messages_of_nvcc_and_of_clang_are_told_of_the_string_too() -> None:
    folder = strings.keep({"k.cu": "one\ntwo\n"}, None, {"k.cu": "cuda_sources"})
    file = folder / "k.cu"
    assert places.told(f"{file}(2): error: no") == "cuda_sources, line 2: error: no"
    assert places.told(f"{file}:2:7: error: no") == "cuda_sources, line 2: error: no"
    assert places.told("other.cpp:2:7: error: no") == "other.cpp:2:7: error: no"


# --- notebooks --------------------------------------------------------------------------------------------------


class Shell:
    """As much of IPython's shell as the magic uses."""

    def __init__(self) -> None:
        self.magics: dict[str, Callable[..., Any]] = {}
        self.names: dict[str, Any] = {}
        self.compile = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[7]") if name == "<cell>" else None)

    def register_magic_function(self, function: Any, magic_kind: str, magic_name: str) -> None:
        assert magic_kind == "cell"
        self.magics[magic_name] = function

    def push(self, names: dict[str, Any]) -> None:
        self.names |= names


def test_a_cell_of_cpp_gives_its_functions_and_says_which_line_is_wrong() -> None:
    shell = Shell()
    magic.load_ipython_extension(shell)
    assert set(shell.magics) == {"cpp", "cuda"}
    shell.magics["cpp"]("doubled", "Tensor doubled(const Tensor& x) { return x; }\n")
    assert shell.names["doubled"](torch.ones(1)).item() == 1.0
    with pytest.raises(Exception, match="this cell, line 3: error: 'y' was not declared"):
        shell.magics["cpp"]("doubled", "Tensor doubled(const Tensor& x) {\n    return y;\n}\n")
    assert len(Path(magic.__file__).read_text(encoding="utf-8").splitlines()) < 60


def test_an_error_speaks_of_the_cell_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = 'SOURCE = """\none\ntwo\n"""\n'
    monkeypatch.setitem(linecache.cache, "<cell>", (len(cell), None, cell.splitlines(True), "<cell>"))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=Shell))
    place = places.Place("\none\ntwo\n", "a string", "<cell>", 1)
    assert place.spoken(3, ":1") == "Cell In[7], line 3"
