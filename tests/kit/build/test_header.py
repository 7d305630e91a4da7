"""The header's examples, and those of the documents, compile as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from opwright.kit.build import toolchain
from opwright.kit.build.plan import Plan

ROOT = Path(__file__).parents[3]


def examples() -> dict[str, str]:
    found: dict[str, str] = {}
    for document in sorted((ROOT / "docs").glob("*.md")):
        blocks = re.findall(r"^```cpp\n(.*?)^```$", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        # Classes are for files of another kind, which tests/kit/test_state.py builds.
        kernels = (block for block in blocks if "opwright/state.h" not in block)
        found |= {f"{document.name}:{i}": block for i, block in enumerate(kernels)}
    header = (toolchain.INCLUDE / "opwright" / "kernel.h").read_text(encoding="utf-8")
    lines = re.findall(r"^//     .*|^//$", header, re.MULTILINE)
    found["kernel.h"] = "".join(line.removeprefix("//").removeprefix("     ") + "\n" for line in lines)
    return found


def compiled(source: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What the compiler says of a kernel, as the build calls it."""
    source.write_text(text, encoding="utf-8")
    plan = Plan("example", (source,), defines=("OPWRIGHT_NAMESPACE=example", "OPWRIGHT_KEY={key}"))
    includes = [f"-I{p}" for p in plan.includes] + [f"-isystem{p}" for p in toolchain.torch_includes()]
    command = [*toolchain.compiler().command, *plan.flags, *plan.filled_defines(), *includes, "-Wall", "-Werror"]
    return subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False)


SLOW = ("cookbook.md",)  # whose recipes are proved, not only compiled


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith(SLOW) else []) for name in examples()]
)
def test_examples_compile(name: str, tmp_path: Path) -> None:
    text = examples()[name]
    assert "OPWRIGHT_KERNEL" in text
    done = compiled(tmp_path / "example.cpp", text)
    assert done.returncode == 0, done.stderr


OWN_NAMESPACES = """
namespace detail { inline double twice(double x); }  // as a header of PyTorch's may have it, before ours
#include <opwright/kernel.h>
#include <opwright/team.h>
#include <opwright/tile.h>
#include <opwright/aten.h>

namespace detail { inline double twice(double x) { return 2 * x; } }
namespace impl { constexpr double one = 1; }
namespace inner { constexpr double one = 1; }
namespace internal { constexpr double one = 1; }

Tensor f_cpu(const Tensor& x) {
    return map([](double v) { return detail::twice(v) + impl::one + inner::one + internal::one; }, x);
}
OPWRIGHT_KERNEL(f, CPU, f_cpu);
"""


def test_a_kernel_may_have_a_namespace_detail_of_its_own(tmp_path: Path) -> None:
    done = compiled(tmp_path / "cpu.cpp", OWN_NAMESPACES)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", ["include/opwright", "ops"])
def test_no_source_of_ours_says_detail(folder: str) -> None:
    """kernel.h opens our namespace to kernels, so that the word would mean two things beside another `detail`."""
    sources = [p for p in (ROOT / "src/opwright" / folder).rglob("*") if p.suffix in (".h", ".cuh", ".cpp", ".cu")]
    assert sources
    for source in sources:
        found = re.search(r"namespace detail\b|(?<!torch::stable::)\bdetail::", source.read_text(encoding="utf-8"))
        assert not found, f"{source}: {found}"
