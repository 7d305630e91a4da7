"""A library that would not run elsewhere is told so before it is shipped: one fault each, and each is found."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.kit.build import compile
from opwright.kit.build.library import libraries
from opwright.kit.build.plan import Plan
from opwright.kit.ship import elf, stable
from opwright.kit.ship.audit import audit
from opwright.kit.ship.elf import BadLibrary
from opwright.kit.ship.platforms import platform_of
from opwright.kit.spec.options import Options
from tests.kit.build.nvcc import needs_nvcc
from tests.kit.ship import symbols
from tests.kit.ship.test_elf import link

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared libraries are ELF files on Linux")


CALL = "extern int {0}(void); int call(void) {{ return {0}(); }}"


def stand_in(folder: Path, soname: str, *functions: str, version: str | None = None) -> list[str]:
    """The flags that link an empty library by some name, which has some functions, of some version."""
    flags = [f"-Wl,-soname,{soname}"]
    if version is not None:
        (folder / "map").write_text(f"{version} {{ {' '.join(f + ';' for f in functions)} }};\n", encoding="utf-8")
        flags.append(f"-Wl,--version-script={folder / 'map'}")
    source = "".join(f"int {f}(void) {{ return 0; }}" for f in functions)
    made = link(folder, source, "-nostdlib", *flags, name=f"stand-in-{soname}")
    return ["-Wl,--no-as-needed", str(made)]


def test_a_library_that_calls_the_stable_abi_alone_has_no_problem(tmp_path: Path) -> None:
    file = link(tmp_path, CALL.format("torch_call_dispatcher"), *stand_in(tmp_path, "libtorch_cpu.so"))
    found = audit(file)
    assert found.problems == ()
    assert found.torch == (2, 10)
    assert found.torch_because == ()
    assert found.tied == ()
    assert found.gpus == ()
    assert found.platform.startswith("manylinux_2_")


@pytest.mark.parametrize(
    "function, said",
    [
        ("_ZN3c108GradMode10is_enabledEv", "C.. of PyTorch.*c10::GradMode::is_enabled;.*abi='aten'"),
        ("_ZN2at4ones", "C.. of PyTorch.*_ZN2at4ones;.*abi='aten'"),
        ("_ZTVN5torch8autograd4NodeE", "C.. of PyTorch.*vtable for torch::autograd::Node;"),
        ("PyList_New", "calls Python.*PyList_New;"),
        ("_Py_Dealloc", "calls Python.*_Py_Dealloc;"),
        ("aoti_torch_of_tomorrow", "no torch of 2.10.* has in its stable ABI: aoti_torch_of_tomorrow;"),
        ("_ZSt28__throw_bad_array_new_lengthv", "no version.*std::__throw_bad_array_new_length;.*libstdc"),
        ("_ZTVSt17bad_function_call", "no version.*vtable for std::bad_function_call;"),
        ("_Z7missingi", "nothing that it may need has missing;.*sources"),
        ("somebodys", "nothing that it may need has somebodys;.*sources"),
    ],
)
def test_a_symbol_that_a_stable_library_must_not_call_is_told(tmp_path: Path, function: str, said: str) -> None:
    file = link(tmp_path, CALL.format(function))
    (problem,) = audit(file).problems
    assert problem.startswith(f"{file}: ")
    assert re.search(said, problem), problem


@pytest.mark.parametrize("function", ["_ZN3c108GradMode10is_enabledEv", "PyList_New"])
def test_a_library_of_one_torch_may_call_its_symbols_and_says_what_it_is_tied_to(tmp_path: Path, function: str) -> None:
    needs = stand_in(tmp_path, "libtorch_python.so")
    found = audit(link(tmp_path, CALL.format(function), *needs), abi="aten")
    assert found.problems == ()
    (tied,) = found.tied
    assert "it was built with" in tied


@pytest.mark.parametrize(
    "needed, remedy",
    [("libmkl_rt.so.2", "statically"), ("libgomp.so.1", "-fopenmp"), ("libcudart.so.13", "-lcudart"),
     ("libpython3.11.so.1.0", "abi='aten'"), ("libtorch_python.so", "abi='aten'")],
)  # fmt: skip
def test_a_library_that_needs_another_is_told(tmp_path: Path, needed: str, remedy: str) -> None:
    (problem,) = audit(link(tmp_path, "", *stand_in(tmp_path, needed))).problems
    assert f"it needs {needed}" in problem
    assert remedy in problem


@pytest.mark.parametrize("tag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_search_path_is_told(tmp_path: Path, tag: str) -> None:
    (problem,) = audit(link(tmp_path, "", "-Wl,-rpath,/opt/mine", f"-Wl,{tag}")).problems
    assert "the search path /opt/mine" in problem


# --- the platform -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "needed, version, tag",
    [
        ("libc.so.6", "GLIBC_2.2.5", "2_17"),
        ("libc.so.6", "GLIBC_2.17", "2_17"),
        ("libc.so.6", "GLIBC_2.18", "2_24"),
        ("libc.so.6", "GLIBC_2.29", "2_31"),
        ("libc.so.6", "GLIBC_2.34", "2_34"),
        ("libstdc++.so.6", "GLIBCXX_3.4.9", "2_17"),
        ("libstdc++.so.6", "GLIBCXX_3.4.24", "2_27"),
        ("libstdc++.so.6", "GLIBCXX_3.4.25", "2_31"),
        ("libstdc++.so.6", "GLIBCXX_3.4.29", "2_34"),
        ("libstdc++.so.6", "CXXABI_1.3.13", "2_34"),
        ("libstdc++.so.6", "CXXABI_FLOAT128", "2_24"),
        ("libgcc_s.so.1", "GCC_7.0.0", "2_27"),
    ],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the figures of x86")
def test_the_platform_is_the_oldest_that_has_what_is_asked_for(
    tmp_path: Path, needed: str, version: str, tag: str
) -> None:
    needs = stand_in(tmp_path, needed, "asked_for", version=version)
    found = audit(link(tmp_path, CALL.format("asked_for"), "-nostdlib", *needs))
    assert found.platform == f"manylinux_{tag}_x86_64"
    assert found.because == ((f"asked_for@{version}",) if tag != "2_17" else ())
    assert found.problems == ()


@pytest.mark.parametrize(
    "needed, version, tag",
    [
        ("libm.so.6", "GLIBC_2.35", "manylinux_2_35"),
        ("libm.so.6", "GLIBC_2.77", "manylinux_2_77"),
        ("libstdc++.so.6", "GLIBCXX_3.4.30", "manylinux_2_35"),
        ("libstdc++.so.6", "GLIBCXX_3.4.99", "linux"),
        ("libm.so.6", "GLIBC_PRIVATE", "linux"),
        ("libm.so.6", "GLIBC_ABI_DT_RELR", "manylinux_2_36"),
    ],
)
def test_a_platform_that_is_too_new_is_a_problem_that_names_the_symbol(
    tmp_path: Path, needed: str, version: str, tag: str
) -> None:
    needs = stand_in(tmp_path, needed, "of_tomorrow", version=version)
    file = link(tmp_path, CALL.format("of_tomorrow"), "-nostdlib", *needs)
    for found in (audit(file, abi="stable"), audit(file, abi="aten")):
        (problem,) = found.problems
        assert found.platform == f"{tag}_{platform.machine()}"
        assert f"of_tomorrow@{version}" in problem
        assert "2.34" in problem


def test_this_machines_c_runtime_gives_a_platform_that_this_machine_is(tmp_path: Path) -> None:
    """Held against what Python says of the system, by a function that glibc 2.17 has not."""
    file = link(tmp_path, "#include <sys/random.h>\nlong f(void *p) { return getrandom(p, 1, 0); }")
    glibc = platform_of(elf.read(file)).glibc
    assert glibc is not None
    assert (2, 17) < glibc <= tuple(map(int, platform.libc_ver()[1].split(".")))


# --- torch --------------------------------------------------------------------------------------------------------


def _later_symbol() -> tuple[str, stable.Symbol]:
    return next((n, s) for n, s in stable.symbols().items() if s.since > (2, 10) and s.library == "libtorch_cpu")


def test_a_library_that_needs_a_newer_torch_than_it_says_is_told(tmp_path: Path) -> None:
    name, symbol = _later_symbol()
    file = link(tmp_path, CALL.format(name))
    (problem,) = audit(file).problems
    assert f"needs {symbol.since[0]}.{symbol.since[1]}, which first had {name}; declare torch>=2." in problem
    assert "0x020a000000000000" in problem  # 0x0210… would be 2.16
    found = audit(file, floor=symbol.since)
    assert found.problems == ()
    assert found.torch == symbol.since
    assert found.torch_because == (name,)


def test_a_function_that_later_releases_dropped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"torch_short_lived": stable.Symbol("libtorch_cpu", (2, 10), (2, 12))}
    monkeypatch.setattr(stable, "symbols", lambda: known)
    (problem,) = audit(link(tmp_path, CALL.format("torch_short_lived"))).problems
    assert "torch 2.12 no longer has torch_short_lived" in problem


def test_a_function_of_libtorch_cuda_needs_a_library_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "aoti_torch_get_current_cuda_stream"
    monkeypatch.setattr(stable, "symbols", lambda: {name: stable.Symbol("libtorch_cuda", (2, 10), None)})
    (problem,) = audit(link(tmp_path, CALL.format(name))).problems
    assert "link libtorch" in problem
    found = audit(link(tmp_path, CALL.format(name), *stand_in(tmp_path, "libtorch.so")))
    assert found.problems == ()
    assert found.needs_cuda == (name,)


def test_the_table_agrees_with_the_torch_that_is_installed() -> None:
    """It has what the table says of its release, and declares nothing that the table does not know."""
    here, root = stable.release_of(torch.__version__), Path(torch.__file__).parent
    offered = symbols.offered(root, "libtorch_cpu")
    known = {n: s for n, s in stable.symbols().items() if s.library == "libtorch_cpu"}
    promised = {n for n, s in known.items() if s.since <= here and (s.gone is None or s.gone > here)}
    assert len(promised) > 300
    assert promised <= offered
    if torch.__version__.partition("+")[0] in stable.looked_at():
        assert offered == promised


def test_a_table_counts_a_function_from_the_first_release_that_has_it() -> None:
    def found(*cpu: str, cuda: tuple[str, ...] = ()) -> dict[str, set[str]]:
        return {"libtorch_cpu": {*cpu}, "libtorch_cuda": {*cuda}}

    made = symbols.table(
        {"2.12.0": found("a", "c"), "2.9.1": found("a", "b", cuda=("d",)), "2.13.0": found("a", cuda=("d", "e"))}
    )
    assert made["torch"] == ["2.9.1", "2.12.0", "2.13.0"]
    assert made["symbols"] == {
        "libtorch_cpu": {"2.9": ["a", "b"], "2.12": ["c"]},
        "libtorch_cuda": {"2.9": ["d"], "2.13": ["e"]},
    }
    assert made["gone"] == {"2.12": ["b"], "2.13": ["c"]}


# --- what the build makes -----------------------------------------------------------------------------------------

WITH_STREAMS = """
#include <filesystem>
#include <sstream>
#include <vector>
extern "C" __attribute__((visibility("default"))) int length(long n) {
    std::vector<long> numbers(n);
    std::ostringstream text;
    for (long x : numbers) text << x;
    text << std::filesystem::path(text.str()).parent_path();
    return static_cast<int>(text.str().size());
}
"""


@pytest.mark.parametrize("ldflags", [(), ("-Wl,-O1",)], ids=["plain", "with ldflags"])
def test_a_built_library_takes_nothing_of_the_c_plus_plus_runtime_from_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ldflags: tuple[str, ...]
) -> None:
    """PyTorch's libraries offer parts of libstdc++ without versions, and a linker that meets them first takes those."""
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "streams.cpp").write_text(WITH_STREAMS, encoding="utf-8")
    built = compile.build(Plan("streams", (tmp_path / "streams.cpp",), Options(ldflags=ldflags))).library
    assert audit(built).problems == ()
    needed = elf.read(built).needed
    assert "libtorch_cpu.so" in needed
    assert not {"libtorch.so", "libc10.so"} & {*needed}


WITH_A_STREAM = """
#include <cuda_runtime_api.h>
#include <torch/csrc/stable/macros.h>
extern "C" __attribute__((visibility("default"))) void wait() {
    void* stream;
    aoti_torch_get_current_cuda_stream(0, &stream);
    STD_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}
"""


@needs_nvcc
def test_pytorchs_own_stable_functions_for_cuda_may_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the torch at hand has no CUDA."""
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "wait.cpp").write_text(WITH_A_STREAM, encoding="utf-8")
    found = audit(compile.build(Plan("wait", (tmp_path / "wait.cpp",), device="cuda")).library)
    assert found.problems == ()
    assert {*found.needs_cuda} == {
        "aoti_torch_get_current_cuda_stream",
        "torch_c10_cuda_check_msg",
        "torch_c10_cuda_free_error_msg",
    }


def test_both_compilers_are_told_of_cuda() -> None:
    plan = Plan("both", (Path("a.cu"), Path("b.cpp")), device="cuda")
    assert "-DUSE_CUDA" in plan.flags
    assert "-DUSE_CUDA" in plan.nvccflags
    assert "-DUSE_CUDA" not in Plan("one", (Path("b.cpp"),)).flags


# Of those for CUDA two, one with code for a GPU and one without: they are built for it, which takes a while.
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_nvcc)])
def test_the_kernels_of_this_package_have_no_problem(device: str) -> None:
    assert ow.axpby.name == "axpby"  # which loads them all
    home = Path(ow.__file__).parent
    mine = [each for each in libraries() if each.device == device and each.file.is_relative_to(home)]
    mine = [each for each in mine if "-DOPWRIGHT_ATEN" not in each.plan().flags]  # which an example loads
    assert len(mine) >= 7
    for each in mine if device == "cpu" else [m for m in mine if m.file.parent.name in ("cube", "linear")]:
        found = audit(each.find(each.plan()).library)
        assert found.problems == (), each.file
        assert found.torch == (2, 10)
        assert found.needs_cuda == ()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("INPUT(-lm)", encoding="utf-8")
    with pytest.raises(BadLibrary, match=r"text\.so is no ELF file"):
        audit(tmp_path / "text.so")
