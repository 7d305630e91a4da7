"""Rows and results as a machine might have given them."""

from __future__ import annotations

from typing import Any

from opwright.kit.bench.results import Results
from opwright.kit.bench.spread import Spread, verdict

CHECK: dict[str, Any] = {
    "version": 1,
    "opwright": "0.1.0",
    "torch": "2.13.0",
    "seed": 0,
    "device": "cpu",
    "passed": False,
    "results": [
        {"op": "twist", "property": "forward", "cases": 12, "skipped": None, "seconds": 0.1, "failures": []},
        {"op": "twist_backward", "property": "forward", "cases": 9, "skipped": None, "seconds": 0.1, "failures": []},
        {
            "op": "twist",
            "property": "sanitize",
            "cases": 0,
            "skipped": "not asked <b>for",
            "seconds": 0.0,
            "failures": [],
        },
        {
            "op": "twist",
            "property": "gradients",
            "cases": 12,
            "skipped": None,
            "seconds": 0.1,
            "failures": [
                {
                    "property": "gradients",
                    "op": "twist",
                    "dtype": "float32",
                    "layout": "transposed",
                    "sample": 2,
                    "message": "grad_x is off <script>alert(1)</script>",
                    "index": [3],
                    "expected": 1.0,
                    "got": 2.0,
                    "replay": "opwright check twist --seed 0",
                }
            ],
        },
    ],
}


def spread(p50: float, share: float = 0.1) -> dict[str, float]:
    return Spread(p50 * (1 - share), p50, p50 * (1 + share)).to_json()


def row(variant: str, kind: str, us: float, *, op: str = "twist", size: int = 1 << 20, **more: Any) -> dict[str, Any]:
    """A row of a variant that takes so long, where the eager reference takes 100 µs."""
    ratio = spread(100 / us)
    said = verdict(Spread.read(ratio))
    found: dict[str, Any] = {
        "op": op, "qualname": f"user::{op}", "case": f"plain {size}", "family": "plain", "size": size,
        "stands": size == 1 << 20, "dtype": "float32", "device": "cpu", "variant": variant, "kind": kind, "same": True,
        "status": "ok", "why": "", "error": 0.1, "run": 0,
    }  # fmt: skip
    for which, times in (("forward", 1.0), ("forward_backward", 3.0)):
        found[f"{which}_us"] = spread(us * times)
        found[f"{which}_speedup"] = {**ratio, "verdict": said}
        found[f"{which}_readings"] = 50
        found[f"{which}_host_us"] = 2.5
        found[f"{which}_bytes"], found[f"{which}_flops"] = 8 * size, 4 * size
        found[f"{which}_limit_us"], found[f"{which}_fraction"] = 40.0, 0.4
        found[f"{which}_peak_bytes"] = 4 * size
    found["kept_bytes"] = found["kept_beyond_inputs_bytes"] = 4 * size
    if kind == "operator":
        found["runs"] = "cpu.cpp"
        found["steps"] = [{"name": "forward", "runs": "cpu.cpp", "why": "the call lies in its domain; built"}]
    return {**found, **more}


def failed(variant: str, kind: str, status: str, why: str, **more: Any) -> dict[str, Any]:
    whole = row(variant, kind, 1.0, **more)
    names = ("op", "qualname", "case", "family", "size", "stands", "dtype", "device", "variant", "kind", "same", "run")
    return {**{k: whole[k] for k in names}, "status": status, "why": why}


def results(*rows: dict[str, Any]) -> Results:
    found = Results({"cpu": "Test <b>CPU</b>", "cores": 2, "threads": 2, "gpu": None, "os": "Linux x86_64"})
    versions = {"opwright": "0.1.0", "torch": "2.13.0", "python": "3.11"}
    found.runs = [{"versions": versions, "commit": "abc", "date": "2026-01-01"}]
    found.limits = {
        "cpu": {
            "copy": [{"bytes": 1 << 14, "bytes_per_s": 4e10}, {"bytes": 1 << 28, "bytes_per_s": 1e10}],
            "gemm_flops_per_s": {"float32": 1e11},
        }
    }
    doc = "x twisted <i>once</i>.\n\nArgs:\n    x: `[...]` & more"
    names = {r["op"] for r in rows}
    found.operators = {
        name: {"qualname": f"user::{name}", "schema": f"{name}(Tensor x) -> Tensor", "families": ["plain"], "doc": doc}
        for name in names
    }
    found.rows = list(rows)
    return found


def whole() -> Results:
    """Two operators, with sizes, rivals, and one variant that is wrong."""
    rows = []
    for op in ("twist", "turn"):
        for size in (256, 1 << 14, 1 << 20):
            scale = size / (1 << 20)
            rows += [
                row("eager", "reference", 100 * scale, op=op, size=size),
                row("compiled", "compiled", 60 * scale, op=op, size=size),
                row("opwright", "operator", 50 * scale, op=op, size=size),
                row("a <em>rival</em>", "rival", 80 * scale, op=op, size=size),
            ]
        rows.append(failed("quick", "variant", "wrong", "the result is off by 1e-1 <img src=x>", op=op))
    for variant, kind, us in (("eager", "reference", 9.0), ("opwright", "operator", 3.0)):
        alone = row(variant, kind, us, case="other 4", family="other", stands=True)
        rows.append({**alone, "size": None})
    return results(*rows)
