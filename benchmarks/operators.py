"""What an operator costs that is defined, called and differentiated once: 200 opaque ones, against as many of
torch.library.custom_op with a registered gradient; and the import of a package of 500.

    python benchmarks/operators.py [--json FILE]

Each kind in processes of its own, in turns; memory is what the process holds, time what it takes, each over what it was
before the first of them. Ratios are those of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading

LIMITS = {"memory": 2.0, "time": 2.5, "import": 0.5}
COUNT = 200


def ours(n: int) -> Callable[[Tensor], Tensor]:
    import opwright as ow

    scope: dict[str, Any] = {"torch": torch, "__name__": "many"}
    exec(f"def op{n}(x: torch.Tensor) -> torch.Tensor:\n    return x * {n}.5", scope)
    op: Any = ow.op(namespace="many_ours", opaque=True)(scope[f"op{n}"])
    exec(f"def gradient(grad, x):\n    return grad * {n}.5", scope)
    op.gradient(scope["gradient"])
    return op  # type: ignore[no-any-return]


def custom(n: int) -> Callable[[Tensor], Tensor]:
    scope: dict[str, Any] = {"torch": torch, "__name__": "many"}
    exec(f"def op{n}(x: torch.Tensor) -> torch.Tensor:\n    return x * {n}.5", scope)
    op: Any = torch.library.custom_op(f"many_custom::op{n}", mutates_args=())(scope[f"op{n}"])
    op.register_fake(lambda x: torch.empty_like(x))

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    op.register_autograd(lambda ctx, grad: grad * (n + 0.5), setup_context=save)
    return op  # type: ignore[no-any-return]


def held() -> int:
    """Bytes of memory that this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def measure(kind: str) -> dict[str, float]:
    """KiB and milliseconds of an operator, in this process."""
    make = {"ours": ours, "custom": custom}[kind]

    def one(n: int) -> None:
        op = make(n)
        x = torch.ones(3, requires_grad=True)
        (grad,) = torch.autograd.grad(op(x).sum(), x)
        assert grad.tolist() == [n + 0.5] * 3
        KEPT.append(op)

    for n in range(5):  # what the first ones import is not theirs
        one(n)
    memory, start = held(), time.perf_counter()
    for n in range(5, 5 + COUNT):
        one(n)
    took = time.perf_counter() - start
    return {"KiB": (held() - memory) / COUNT / 1024, "ms": took / COUNT * 1e3}


KEPT: list[Any] = []


def elsewhere(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def importing(count: int) -> dict[str, float]:
    """Seconds that the import of a package with so many operators takes beyond torch and opwright."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "many_ops"
        package.mkdir()
        lines = ["import torch", "import opwright as ow", ""]
        for n in range(count):
            lines += ["@ow.op", f"def op{n}(x: torch.Tensor, *, by: float = {n}.0) -> torch.Tensor:"]
            lines += [f"    return x * by + {n}", ""]
        (package / "__init__.py").write_text("\n".join(lines))
        command = "import time, torch, opwright, json; t = time.perf_counter(); import many_ops; "
        command += "print(json.dumps({'s': time.perf_counter() - t}))"
        seconds = []
        for _ in range(4):  # the first one compiles the package
            done = subprocess.run(
                [sys.executable, "-c", command], cwd=folder, capture_output=True, text=True, check=True
            )
            seconds.append(json.loads(done.stdout)["s"])
    return {"s": statistics.median(seconds[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=("ours", "custom"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.measure:
        print(json.dumps(measure(chosen.measure)))
        return
    rounds = [{kind: elsewhere("--measure", kind) for kind in ("custom", "ours")} for _ in range(chosen.rounds)]
    rows = []
    for what, unit in (("memory", "KiB"), ("time", "ms")):
        other, mine = (statistics.median(r[kind][unit] for r in rounds) for kind in ("custom", "ours"))
        row = {"figure": what, "unit": unit, "other": other, "ours": mine, "ratio": mine / other, "limit": LIMITS[what]}
        rows.append(row)
        print(
            f"{what:8} custom_op {other:8.2f} {unit:4} ours {mine:8.2f} {unit:4} {mine / other:5.2f} of {LIMITS[what]}"
        )
    seconds = importing(500)["s"]
    rows.append({"figure": "import of 500", "unit": "s", "ours": seconds, "limit": LIMITS["import"]})
    print(f"import of 500 operators {seconds:.2f} s of {LIMITS['import']} s")
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps({**heading(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
