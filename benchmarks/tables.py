"""Writes the tables of docs/gradients.md, docs/shipping.md, docs/cpp.md and of LLTM from stored results.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
AUTOGRAD = ROOT / "benchmarks" / "results" / "autograd.json"
CPP = ROOT / "benchmarks" / "results" / "cpp.json"
RECURRENT = ROOT / "benchmarks" / "results" / "recurrent.json"
SHIPPING = ROOT / "benchmarks" / "results" / "shipping.json"
PROOFS = ROOT / "tests" / "kit" / "ship" / "proofs.json"
WAYS = ("call", "recorded", "forward+backward")


def gradients() -> dict[str, str]:
    """The tables of docs/gradients.md by the name that the page gives them."""
    stored = _read(AUTOGRAD)
    costs = ["| operator | call | recorded | f+b | in Python: call | recorded | f+b |", "|---|---|---|---|---|---|---|"]
    for name in stored["costs"]["node"]:
        figures = [stored["costs"][who][name][way] for who in ("node", "python") for way in WAYS]
        costs.append(f"| {name} | " + " | ".join(f"{f:.1f}" for f in figures) + " |")
    ratios = ["| | the other | ours | ratio |", "|---|---|---|---|"]
    for row in stored["rows"]:
        ratios.append(f"| {row['figure']} | {row['other_us']:.1f} | {row['op_us']:.1f} | {row['ratio']:.2f} |")
    return {"costs": "\n".join(costs), "ratios": "\n".join(ratios), "where": _where(stored)}


def shipping() -> dict[str, str]:
    """Those of docs/shipping.md: where opwright's own wheel was proved, and what shipped kernels cost."""
    proofs = ["| torch | Python | on | compiler | checked | gradients recorded |", "|---|---|---|---|---|---|"]
    for row in sorted(_read(PROOFS), key=lambda row: [int(n) for n in re.findall(r"\d+", row["torch"])[:3]]):
        where = row["gpu"] or row["machine"]
        recorded = row["gradients"].partition(" (")[0]
        compiler = "none" if row["compiler"] is None else "one"
        proofs.append(f"| {row['torch']} | {row['python']} | {where} | {compiler} | {row['said']} | {recorded} |")
    stored = _read(SHIPPING)
    costs = ["| | measured | wanted |", "|---|---:|---:|"]
    for r in stored["rows"]:
        wanted = "" if r["limit"] is None else f"< {r['limit']:g} {r['unit']}"
        costs.append(f"| {r['figure']} | {r['value']:.3g} {r['unit']} | {wanted} |")
    return {"proofs": "\n".join(proofs), "figures": "\n".join(costs), "where": _where(stored)}


def cpp() -> dict[str, str]:
    """Those of docs/cpp.md: what a call and a build cost."""
    stored = _read(CPP)
    costs = ["| | ours | the other | ratio | wanted |", "|---|---:|---:|---:|---:|"]
    for r in stored["rows"]:
        figures = (
            f"{r['ours']:,.0f} {r['unit']} | {r['other']:,.0f} {r['unit']} | {r['ratio']:.2f} | ≤ {r['limit']:.2f}"
        )
        costs.append(f"| {r['figure']} | {figures} |")
    return {"figures": "\n".join(costs), "where": _where(stored)}


def recurrent() -> dict[str, str]:
    """Those of LLTM on the GPU: times, memory and errors against cuDNN."""
    stored = _read(RECURRENT)
    times = [
        "| T, B, I = H, dtype | ours, ms | nn.LSTM, ms | found | wanted | peak memory, MB | nn.LSTM |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    errors = ["| T, B, I = H, dtype | ours | a plain loop | nn.LSTM |", "|---|---:|---:|---:|"]
    for row in stored["rows"]:
        ways = [row[way] for way in ("without_gradient", "both")]
        ours, theirs = (" / ".join(f"{way[who]:.3g}" for way in ways) for who in ("ours", "cudnn"))
        found = " / ".join(f"{f:.2f}" for f in row["found"]) if row["unit"] else ""
        wanted = "" if row["limit"] is None else f"{_pair(row['limit'])} {_unit(row['unit'])}"
        peak = f"{row['peak']['ours']:.0f} | {row['peak']['cudnn']:.0f}"
        times.append(f"| {row['case']} | {ours} | {theirs} | {found} | {wanted} | {peak} |")
        told = [_error(row["error"].get(who)) for who in ("ours", "plain", "cudnn")]
        errors.append(f"| {row['case']} | " + " | ".join(told) + " |")
    paths = ["| path | T, B, I = H, dtype | forward | with the backward |", "|---|---|---:|---:|"]
    for row in stored.get("paths", []):
        paths.append(f"| {row['path']} | {row['case']} | {row['step'][0]:.1f} | {row['step'][1]:.1f} |")
    both = ["| T, B, I = H | one after the other | at the same time |", "|---|---:|---:|"]
    for row in stored.get("directions", []):
        pairs = [[row[way][how] for way in ("without_gradient", "both")] for how in ("after", "beside")]
        both.append(f"| {row['case']} | " + " | ".join(f"{a:.2f} / {b:.2f}" for a, b in pairs) + " |")
    where = f"{stored['machine']['gpu']}, torch {stored['versions']['torch']}, {stored['date']}."
    tables = {"times": times, "errors": errors, "paths": paths, "directions": both, "where": [where]}
    return {name: "\n".join(lines) for name, lines in tables.items()}


def sequences() -> dict[str, str]:
    """Those of docs/lltm.md: the times."""
    tables = recurrent()
    return {name: tables[name] for name in ("times", "where")}


def _pair(limits: list[float]) -> str:
    return f"≤ {limits[0]:g}" if limits[0] == limits[1] else f"≤ {limits[0]:g} / {limits[1]:g}"


def _unit(unit: str) -> str:
    return unit if unit == "ms" else f"of {unit}"


def _error(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['output']:.1e} / {found['gradients']:.1e}"


PAGES = {
    ROOT / "docs" / "gradients.md": gradients,
    ROOT / "docs" / "shipping.md": shipping,
    ROOT / "docs" / "cpp.md": cpp,
    ROOT / "docs" / "lltm.md": sequences,
    ROOT / "src" / "opwright" / "ops" / "lltm" / "NOTES.md": recurrent,
}


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _where(stored: dict[str, Any]) -> str:
    versions = stored["versions"]
    return f"{stored['machine']['cpu']}, torch {versions['torch']}, Python {versions['python']}, {stored['date']}."


def filled(page: Path) -> str:
    """A page with its tables as the stored results have them."""
    text = page.read_text(encoding="utf-8")
    for name, table in PAGES[page]().items():
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, found = re.subn(pattern, lambda m, table=table: m[1] + table + m[2], text, flags=re.DOTALL)  # type: ignore[misc]
        assert found == 1, name
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page), encoding="utf-8")
