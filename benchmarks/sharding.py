"""What DTensors cost: a warm call beside PyTorch's own, and what the proof of all rules takes and finds.

    python benchmarks/sharding.py [--json FILE] [--from SEED --to SEED] [calls] [property] [rules] [seeds]

Calls are measured in one process, on a mesh of one device, without redistribution: what is left is the host's work.
Each figure is the least of several medians, ours and PyTorch's in turn. `seeds` runs the property over all operators
with fifty seeds, which takes minutes (`--from` and `--to`: with some of them, added to what is stored). Without names
all four are done; what is not asked for stays as it is stored.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import torch
from see_through import heading

import opwright as ow
from opwright.kit.check.run import run

PARTS = ("calls", "property", "rules", "seeds")
LIMITS = {"calls": 1.3, "property": 60.0}
SEEDS = 50


def calls() -> list[dict[str, Any]]:
    """Host time of warm calls, ours and PyTorch's, in microseconds."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.randn(8, 16), mesh, [Shard(0)])
    weight = distribute_tensor(torch.randn(16, 16), mesh, [Replicate()])
    bias = distribute_tensor(torch.randn(16), mesh, [Replicate()])
    turned = weight.t()
    watched = x.detach().requires_grad_()
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "sigmoid": (lambda: ow.sigmoid(x), lambda: torch.sigmoid(x)),
        "linear, addmm": (lambda: ow.linear(x, weight, bias), lambda: torch.addmm(bias, x, turned)),
        "sigmoid, recorded": (lambda: ow.sigmoid(watched), lambda: torch.sigmoid(watched)),
        "linear, addmm, recorded": (
            lambda: ow.linear(watched, weight, bias),
            lambda: torch.addmm(bias, watched, turned),
        ),
    }
    rows = []
    for name, (ours, other) in pairs.items():
        torch.testing.assert_close(ours().to_local(), other().to_local())
        found: list[list[float]] = [[], []]
        for _ in range(7):
            for figures, call in zip(found, (ours, other), strict=True):
                figures.append(median(call))
        mine, theirs = (min(figures) for figures in found)
        rows.append({"figure": name, "ours": mine, "other": theirs, "ratio": mine / theirs, "limit": LIMITS["calls"]})
    dist.destroy_process_group()
    return rows


def median(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(400):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def library() -> list[ow.Op[..., Any]]:
    return [op for name in ow.__all__ if isinstance(op := getattr(ow, name), ow.Op)]


def of_property() -> dict[str, Any]:
    """The property over all operators, once."""
    start = time.perf_counter()
    report = run(library(), only=["sharding"])
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "limit": LIMITS["property"], "cases": report.cases, "failures": len(report.failures)}


def rules() -> dict[str, Any]:
    """How many rules that are wrong on purpose are rejected."""
    from tests.broken_rules import BROKEN_RULES

    rejected = [b.name for b in BROKEN_RULES if not run([b.op], only=["sharding"]).passed]
    return {"wrong": len(BROKEN_RULES), "rejected": len(rejected)}


def seeds(first: int, last: int, known: dict[str, Any]) -> dict[str, Any]:
    """False alarms over all operators, with those of earlier runs."""
    before = known if first else {}
    reports = [run(library(), only=["sharding"], seed=seed) for seed in range(first, last)]
    return {
        "seeds": last,
        "cases": before.get("cases", 0) + sum(r.cases for r in reports),
        "failures": before.get("failures", 0) + sum(len(r.failures) for r in reports),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="last", type=int, default=SEEDS)
    asked = parser.parse_args()
    known = json.loads(asked.json.read_text(encoding="utf-8")) if asked.json and asked.json.exists() else {}
    measure: dict[str, Callable[[], Any]] = {
        "calls": calls,
        "property": of_property,
        "rules": rules,
        "seeds": lambda: seeds(asked.first, asked.last, known.get("seeds", {})),
    }
    found = {**known, **heading()}
    for part in asked.parts or PARTS:
        found[part] = measure[part]()
        print(part, json.dumps(found[part], indent=1))
        if asked.json:  # at once: the next may take minutes
            asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
