"""What autograd costs on the host: calls that are recorded, and their backward, against PyTorch's own operator and
torch.library.register_autograd; and every operator of the library, recorded in C++ and in Python.

    python benchmarks/autograd.py [--json FILE]

16 elements, CPU, one thread. What is compared is timed in turns within one run; ratios are those of medians. Verified
before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import native, registry, short
from opwright.kit.scaffold import scaffold
from opwright.kit.spec.values import has_gradient, tensors

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading, time_in_turns

LIMITS = {
    "axpby, no gradient": 1.6,
    "axpby, recorded": 2.0,
    "axpby, forward and backward": 1.15,
    "scaffolded, recorded": 0.25,
}


def both(function: Callable[[], Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(function(), inputs, grad)


def pairs(folder: Path) -> dict[str, list[Callable[[], Any]]]:
    """For each figure: the other's way, then ours."""
    x, y, grad = (torch.rand(16) for _ in range(3))
    p, q = x.clone().requires_grad_(), y.clone().requires_grad_()
    plain, ours = swish(folder)
    return {
        "axpby, no gradient": [lambda: torch.add(y, x, alpha=2.0), lambda: ow.axpby(x, y, a=2.0)],
        "axpby, recorded": [lambda: torch.add(q, p, alpha=2.0), lambda: ow.axpby(p, q, a=2.0)],
        "axpby, forward and backward": [
            both(lambda: torch.add(q, p, alpha=2.0), (p, q), grad),
            both(lambda: ow.axpby(p, q, a=2.0), (p, q), grad),
        ],
        "scaffolded, recorded": [lambda: plain(p, 2.0), lambda: ours(p, beta=2.0)],
    }


def swish(folder: Path) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """A scaffolded operator, and its kernel with a gradient registered as PyTorch's documentation does."""
    scaffold("swish", folder)
    op = ow.load(folder / "swish").swish
    op.build()
    overload = op.kernels[0].overload

    def save(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.beta = inputs[1]

    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return grad * (s + ctx.beta * x * s * (1 - s)), None

    torch.library.register_autograd(overload.name(), backward, setup_context=save)
    x = torch.rand(16, requires_grad=True)
    for value in (overload(x, 2.0), op(x, beta=2.0)):
        torch.testing.assert_close(
            torch.autograd.grad(value.sum(), x),
            torch.autograd.grad((x * torch.sigmoid(2.0 * x)).sum(), x),
        )
    return overload, op


def host_costs(seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds of every operator of the library on its first sample, as this process records."""
    found: dict[str, dict[str, float]] = {}
    for op in registry.operators():
        if op.namespace != "opwright" or op.home is not op or op.name.endswith("_"):
            continue
        if not op.signature.outputs:  # it writes, and has nothing to record
            continue
        sample = op.draw_samples(ow.Maker(torch.float32))[0]
        watched = [t for a in (*sample.args, *sample.kwargs.values()) for t in tensors(a) if has_gradient(t)]

        def call(op: ow.Op[..., Any] = op, sample: ow.Sample = sample) -> Any:
            return op(*sample.args, **sample.kwargs)

        quiet = time_in_turns([call], seconds)[0]
        for t in watched:
            t.requires_grad_()
        out = call()
        outputs = [t for t in tensors(out) if t.requires_grad]
        grads = [torch.ones_like(t) for t in outputs]

        def train(call: Any = call, watched: Any = watched, grads: Any = grads) -> Any:
            outs = [t for t in tensors(call()) if t.requires_grad]
            return torch.autograd.grad(outs, watched, grads, allow_unused=True)

        recorded, trained = time_in_turns([call, train], seconds)
        found[op.name] = {"call": quiet * 1e6, "recorded": recorded * 1e6, "forward+backward": trained * 1e6}
    return found


def elsewhere(seconds: float, **environment: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, __file__, "--costs", "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    read: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each pair")
    parser.add_argument("--costs", action="store_true", help="only the costs of the operators, as JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.costs:
        print(json.dumps(host_costs(chosen.seconds)))
        return
    if native.available() is not None:
        sys.exit(f"there is nothing to compare: {native.available()}")
    rows = []
    print(f"{'':28} {'other µs':>9} {'ours µs':>8} {'ratio':>6} {'limit':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, functions in pairs(Path(folder)).items():
            other, ours = time_in_turns(functions, chosen.seconds)
            rows.append({"figure": name, "other_us": other * 1e6, "op_us": ours * 1e6, "ratio": ours / other,
                         "limit": LIMITS[name]})  # fmt: skip
            line = f"{other * 1e6:9.2f} {ours * 1e6:8.2f} {ours / other:6.2f} {LIMITS[name]:6.2f}"
            print(f"{name:28} {line}", flush=True)
    costs = {
        "node": elsewhere(chosen.seconds / 4),
        "python": elsewhere(chosen.seconds / 4, OPWRIGHT_NATIVE="0"),
    }
    for name in costs["node"]:
        for way in costs["node"][name]:
            print(f"{name:12} {way:18} {costs['node'][name][way]:8.2f} {costs['python'][name][way]:8.2f}")
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        stored = {**heading(), "short": short.look() or "yes", "rows": rows, "costs": costs}
        chosen.json.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
