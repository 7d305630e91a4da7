"""What building costs: a cold first call of axpby against torch.utils.cpp_extension.load on an equivalent source.

    python benchmarks/build.py [--json FILE]

All compile in this run, one after the other, with empty caches; then axpby once more, with what kernels share compiled
already, as any operator but a machine's first finds it and as `opwright build` leaves it. Then a second process: the
time from `import torch` done to the operator's first result, when the library is in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading

EXTENSION = """
#include <torch/extension.h>
at::Tensor axpby(const at::Tensor& x, const at::Tensor& y, double a, double b) {
    auto out = at::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "axpby", [&] {
        const auto* p = x.const_data_ptr<scalar_t>();
        const auto* q = y.const_data_ptr<scalar_t>();
        auto* r = out.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, x.numel(), 32768, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) r[i] = scalar_t(a) * p[i] + scalar_t(b) * q[i];
        });
    });
    return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("axpby", &axpby); }
"""

OURS = """
import time, torch
x = torch.ones(8)
start = time.perf_counter()
import opwright as ow
assert ow.axpby(x, x, a=2).tolist() == [3.0] * 8
took = time.perf_counter() - start
assert ow.explain(ow.axpby, x, x).runs == "cpu.cpp"
print(took)
"""

THEIRS = """
import sys, time, torch
from torch.utils.cpp_extension import load
x = torch.ones(8)
start = time.perf_counter()
module = load("axpby_extension", [sys.argv[1]], build_directory=sys.argv[2])
assert module.axpby(x, x, 2.0, 1.0).tolist() == [3.0] * 8
print(time.perf_counter() - start)
"""


def seconds(code: str, *arguments: str, **environment: str) -> float:
    command = [sys.executable, "-c", code, *arguments]
    # ninja lies beside the interpreter in a virtual environment
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**plain, "PATH": path, **environment}
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "extension.cpp")
        source.write_text(EXTENSION)
        cache = {"OPWRIGHT_CACHE_DIR": str(Path(scratch, "cache"))}
        seconds("import opwright; print(0)")  # leaves bytecode, as an installed package has it
        row: dict[str, Any] = {"cold_s": seconds(OURS, **cache)}
        print(f"opwright, cold:           {row['cold_s']:6.2f} s")
        for entry in Path(scratch, "cache", "entries").iterdir():
            if "axpby" in (entry / "about.json").read_text(encoding="utf-8"):
                shutil.rmtree(entry)
        row["next_s"] = seconds(OURS, **cache)
        print(f"opwright, not the first:  {row['next_s']:6.2f} s")
        Path(scratch, "extension").mkdir()
        row["cpp_extension_s"] = seconds(THEIRS, str(source), str(Path(scratch, "extension")))
        print(f"cpp_extension.load, cold: {row['cpp_extension_s']:6.2f} s")
        row["cached_s"] = min(seconds(OURS, **cache) for _ in range(5))
        print(f"opwright, cached:         {row['cached_s']:6.3f} s beyond import torch (the best of 5)")
        row["ratio"] = row["cold_s"] / row["cpp_extension_s"]
        row["next_ratio"] = row["next_s"] / row["cpp_extension_s"]
        print(f"cold, ratio:              {row['ratio']:6.3f}, not the first: {row['next_ratio']:.3f}")
    if chosen.json:
        chosen.json.write_text(json.dumps({**heading(), "rows": [row]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
