"""The CPU kernels against PyTorch's own operators: ratios of times, measured in turns.

    python benchmarks/cpu_kernels.py [--threads N] [--sweep]

Kernels are called as the overloads a built library registers, so that neither router nor autograd is measured. Beside
`torch.add(x, y, alpha=2)`, whose way through Python is its own, `torch.ops.aten.add` shows the same way through Python
that the kernel takes.
"""

# mypy: disable-error-code=misc
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import opwright as ow


def load(name: str) -> tuple[Any, Any]:
    """The overloads of an operator's kernel and of its gradient's, as the build registers them."""
    op = getattr(ow, name)
    for rung in (op, op.backward):
        rung.build()
    return op.kernels[0].overload, op.backward.kernels[0].overload


def measure(calls: dict[str, Callable[[], Any]], rounds: int = 60, window: float = 3e-4) -> dict[str, list[float]]:
    """Seconds a call, one figure a round; the calls take turns, so that what disturbs one disturbs all."""
    repeats = {}
    for name, call in calls.items():
        call()
        fastest = min(_time(call, 2) for _ in range(5))
        repeats[name] = max(1, int(window / fastest))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_time(call, repeats[name]))
    return times


def _time(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def report(case: str, kernel: Callable[[], Any], **spellings: Callable[[], Any]) -> None:
    """One line: the kernel against the fastest of PyTorch's spellings, by least and by median times."""
    times = measure({"kernel": kernel, **spellings})
    least = {name: min(t) for name, t in times.items()}
    median = {name: statistics.median(t) for name, t in times.items()}
    best = min(spellings, key=lambda name: least[name])
    other = min(median[name] for name in spellings)
    print(
        f"{case:34s} {least['kernel'] / least[best]:6.2f} {median['kernel'] / other:8.2f}   "
        f"{least['kernel'] * 1e6:10.2f} {least[best] * 1e6:10.2f}   {best}",
        flush=True,
    )


def figures(kernels: dict[str, tuple[Any, Any]]) -> None:
    axpby, sigmoid, cube, linear = (kernels[n] for n in ("axpby", "sigmoid", "cube", "linear"))
    x, y, g = torch.randn(3, 2**16)
    square = torch.randn(256, 256)
    operands = {
        "contiguous": (x, y),
        "transposed": (torch.randn(256, 256).t(), square),
        "sliced": (torch.randn(512, 512)[:256, :256], square),
        "every second": (torch.randn(256, 512)[:, ::2], square),
        "row": (square, torch.randn(256)),
        "column": (square, torch.randn(256, 1)),
    }
    for layout, (p, q) in operands.items():
        report(f"axpby {layout}", lambda p=p, q=q: axpby[0](p, q, a=2.0), add=lambda p=p, q=q: torch.add(p, q, alpha=2))
    report("axpby contiguous", lambda: axpby[0](x, y, a=2.0), ops_add=lambda: torch.ops.aten.add.Tensor(x, y, alpha=2))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        p, q = x.to(dtype), y.to(dtype)
        report(
            f"axpby {str(dtype)[6:]}", lambda p=p, q=q: axpby[0](p, q, a=2.0), add=lambda p=p, q=q: p.add(q, alpha=2)
        )
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        p, q, name = x.to(dtype), g.to(dtype), str(dtype)[6:]
        s = torch.sigmoid(p)
        report(f"sigmoid {name}", lambda p=p: sigmoid[0](p), sigmoid=lambda p=p: torch.sigmoid(p))
        report(
            f"sigmoid_backward {name}",
            lambda q=q, s=s: sigmoid[1](q, s),
            sigmoid_backward=lambda q=q, s=s: torch.ops.aten.sigmoid_backward(q, s),
        )
        report(f"cube {name}", lambda p=p: cube[0](p), product=lambda p=p: p * p * p, power=lambda p=p: p.pow(3))
        report(
            f"cube_backward {name}",
            lambda p=p, q=q: cube[1](q, p),
            product=lambda p=p, q=q: 3 * q * p * p,
            square=lambda p=p, q=q: 3 * q * p.square(),
        )
    rows, weight, bias = torch.randn(512, 1024), torch.randn(1024, 1024), torch.randn(1024)
    report(
        "linear 512x1024x1024",
        lambda: linear[0](rows, weight, bias),
        linear=lambda: torch.nn.functional.linear(rows, weight, bias),
    )


def sweep(kernels: dict[str, tuple[Any, Any]]) -> None:
    for exponent in range(0, 25, 2):
        x, y = torch.randn(2, 2**exponent)
        report(
            f"axpby 2^{exponent}",
            lambda x=x, y=y: kernels["axpby"][0](x, y, a=2.0),
            add=lambda x=x, y=y: torch.add(x, y, alpha=2),
        )
    for exponent in range(0, 13, 2):
        x, y = torch.randn(2, 2**exponent, 2**exponent)
        report(
            f"axpby transposed 2^{2 * exponent}",
            lambda x=x, y=y: kernels["axpby"][0](x.t(), y, a=2.0),
            add=lambda x=x, y=y: torch.add(x.t(), y, alpha=2),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sweep", action="store_true", help="sizes from 1 to 2^24")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        names = ["axpby"] if options.sweep else ["axpby", "sigmoid", "cube", "linear"]
        kernels = {name: load(name) for name in names}
        print(f"{'case':34s} {'least':>6s} {'median':>8s}   {'kernel us':>10s} {'torch us':>10s}   best spelling")
        (sweep if options.sweep else figures)(kernels)


if __name__ == "__main__":
    main()
