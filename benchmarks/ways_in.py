"""What the ways in cost, beside torch.utils.cpp_extension's load and load_inline, on the same sources.

    python benchmarks/ways_in.py SCRATCH [--stage NAME …] [--json FILE]

Every figure is of a process of its own: of a build the seconds of CPU that it and its compilers took, which other
programs on the machine do not change much; of what is cached the seconds by the clock, the best of a few. SCRATCH is a
folder that starts empty and keeps caches and what was measured between the stages: inline, first, header (which is
made, not measured), rebuild, cached. With --json the rows are put together and written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading

SOURCE = Path(__file__).parent.parent / "examples" / "extension" / "lltm.cpp"

KERNEL = """
#include <opwright/kernel.h>
Tensor thrice_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) { using C = decltype(zero); return map([](C v) { return 3 * v; }, x); });
}
OPWRIGHT_KERNEL(thrice, CPU, thrice_cpu);
"""

OPERATOR = """
import torch, opwright as ow
@ow.op
def thrice(x: torch.Tensor) -> torch.Tensor:
    return 3 * x
"""

TIMED = """
import os, sys, time, torch
if {imported}:
    import opwright as ow
def now():
    return time.perf_counter(), sum(os.times()[:4])
start = now()
{body}
end = now()
print(end[0] - start[0], end[1] - start[1])
"""

INLINE = (
    OPERATOR + f"thrice.kernel_source('cpu', '''{KERNEL}''')\nassert thrice(torch.ones(2)).tolist() == [3.0, 3.0]\n"
)
FOLDER = """
import opwright as ow
assert ow.load(sys.argv[1]).thrice(torch.ones(2)).tolist() == [3.0, 3.0]
"""
FUNCTION = """
made = ow.inline('''
Tensor thrice(const Tensor& x) {
    return compute(x, [&](auto zero) { using C = decltype(zero); return map([](C v) { return 3 * v; }, x); });
}
''', functions=["thrice"])
assert made.thrice(torch.ones(2)).tolist() == [3.0, 3.0]
"""
LOAD_INLINE = """
from torch.utils.cpp_extension import load_inline
start = now()
made = load_inline("thrice_inline", ["torch::Tensor thrice(torch::Tensor x) { return 3 * x; }"], functions=["thrice"],
                   build_directory=sys.argv[1])
assert made.thrice(torch.ones(2)).tolist() == [3.0, 3.0]
"""
USED = """
state = torch.zeros(2, 4)
assert len(module.forward(torch.ones(2, 3), torch.ones(12, 7), torch.ones(12), state, state)) == 7
"""
OURS = "module = ow.load_extension(sys.argv[1], name='lltm_measured')\n" + USED
THEIRS = """
from torch.utils.cpp_extension import load
start = now()
module = load("lltm_measured", [sys.argv[1]], build_directory=sys.argv[2])
"""
THEIRS += USED


class Measured:
    """What was measured so far, kept in the scratch folder."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.file = scratch, scratch / "measured.json"
        self.seconds: dict[str, float] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def take(self, name: str, code: str, *arguments: object, cache: str = "cache", best_of: int = 1) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja lies beside the interpreter
        environment |= {"PATH": path, "OPWRIGHT_CACHE_DIR": str(self.scratch / cache)}
        # What a build leaves running behind it would be measured with the next.
        environment |= {} if name == "rebuild: ours" else {"OPWRIGHT_PCH": "0"}
        text = TIMED.format(imported=code not in (LOAD_INLINE, THEIRS), body=code)
        found = []
        for _ in range(best_of):
            command = [sys.executable, "-c", text, *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            clock, cpu = map(float, done.stdout.split()[-2:])
            found.append(clock if name.startswith("cached") else cpu)
        self.seconds[name] = min(found)
        self.file.write_text(json.dumps(self.seconds, indent=1))
        print(f"{name}: {min(found):.3f} s", flush=True)

    def folder(self, name: str) -> Path:
        place = self.scratch / name
        place.mkdir(exist_ok=True)
        return place


def inline(m: Measured) -> None:
    """Each with an empty cache; then again, in a process that finds what was built."""
    folder = m.folder("operator")
    (folder / "op.py").write_text(OPERATOR + "thrice.kernel_file('cpu.cpp')\n")
    (folder / "cpu.cpp").write_text(KERNEL)
    m.take("cold: folder", FOLDER, folder, cache="cache-folder")
    m.take("cold: operator of a string", INLINE, cache="cache-string")
    m.take("cold: function of a string", FUNCTION, cache="cache-function")
    m.take("cold: load_inline", LOAD_INLINE, m.folder("load_inline"))
    m.take("cached: operator of a string", INLINE, cache="cache-string", best_of=5)
    m.take("cached: function of a string", FUNCTION, cache="cache-function", best_of=5)
    m.take("cached: load_inline", LOAD_INLINE, m.folder("load_inline"), best_of=3)


def first(m: Measured) -> None:
    source = m.scratch / "lltm.cpp"
    source.write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    m.take("first: theirs", THEIRS, source, m.folder("load"))
    m.take("first: ours", OURS, source)


def header(m: Measured) -> None:
    os.environ["OPWRIGHT_CACHE_DIR"] = str(m.scratch / "cache")
    from opwright.kit.build import cache
    from opwright.kit.build import header as precompiled
    from opwright.kit.build.plan import Plan
    from opwright.kit.spec.options import Options

    defines = ("TORCH_EXTENSION_NAME=lltm_measured", "TORCH_API_INCLUDE_EXTENSION_H")
    precompiled.make(Plan("lltm_measured", (m.scratch / "lltm.cpp",), Options(abi="aten"), defines, extension=True))
    (entry,) = [e for e in cache.entries(cache.open_folder()) if e.about["name"] == precompiled.NAME]
    m.seconds |= {"header: MB": entry.size / 1e6}
    m.file.write_text(json.dumps(m.seconds, indent=1))


def rebuild(m: Measured) -> None:
    source = m.scratch / "lltm.cpp"
    source.write_text(SOURCE.read_text(encoding="utf-8").replace("1 - s", "1.0 - s"), encoding="utf-8")
    m.take("rebuild: theirs", THEIRS, source, m.folder("load"))
    m.take("rebuild: ours", OURS, source)


def cached(m: Measured) -> None:
    source = m.scratch / "lltm.cpp"
    m.take("cached: theirs", THEIRS, source, m.folder("load"), best_of=3)
    m.take("cached: ours", OURS, source, best_of=5)


STAGES: dict[str, Callable[[Measured], None]] = {
    "inline": inline, "first": first, "header": header, "rebuild": rebuild, "cached": cached,
}  # fmt: skip


def rows(s: dict[str, float]) -> list[dict[str, Any]]:
    """The figures: ours, the other, and what was wanted, of the ratio or of ours in seconds."""

    def row(
        figure: str, ours: str, other: str, ratio: float | None = None, most: float | None = None
    ) -> dict[str, Any]:
        found = {"figure": figure, "ours_s": s[ours], "other": other.partition(": ")[2], "other_s": s[other]}
        return found | {"ratio": s[ours] / s[other], "ratio_limit": ratio, "limit_s": most}

    return [
        row("an operator with a kernel from a string, cold", "cold: operator of a string", "cold: folder", 1.2),
        row("the same, cached", "cached: operator of a string", "cached: load_inline", most=0.05),
        row("a function from a string, cold", "cold: function of a string", "cold: load_inline"),
        row("the same, cached", "cached: function of a string", "cached: load_inline", most=0.05),
        row("an extension, first build", "first: ours", "first: theirs", 1.1),
        row("the same, rebuilt after an edit", "rebuild: ours", "rebuild: theirs", 0.6),
        row("the same, cached", "cached: ours", "cached: theirs", most=0.15),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--stage", nargs="*", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    chosen.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    measured = Measured(chosen.scratch.resolve())
    for stage in chosen.stage:
        STAGES[stage](measured)
    if chosen.json:
        s = measured.seconds
        found = {**heading(), "rows": rows(s), "header": {"MB": s["header: MB"]}}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
