"""Writes the tables of docs/gradients.md, shipping.md, cpp.md, ways-in.md and state.md from stored results.

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
CLASSES = ROOT / "tests" / "classes.json"
WAYS_IN = ROOT / "benchmarks" / "results" / "ways_in.json"
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


def ways_in() -> dict[str, str]:
    """Those of docs/ways-in.md: what builds and cached loads cost, and how large the precompiled header is."""
    stored = _read(WAYS_IN)
    costs = ["| | ours | the other | ratio | wanted |", "|---|---:|---|---:|---:|"]
    for r in stored["rows"]:
        wanted = "" if r["limit_s"] is None else f"< {r['limit_s']:g} s"
        wanted = wanted if r["ratio_limit"] is None else f"≤ {r['ratio_limit']:g}"
        name = {"theirs": "`cpp_extension.load`", "load_inline": "`load_inline`", "folder": "a folder's"}[r["other"]]
        costs.append(
            f"| {r['figure']} | {r['ours_s']:.3g} s | {name} {r['other_s']:.3g} s | {r['ratio']:.3f} | {wanted} |"
        )
    large = f"{stored['header']['MB']:.0f} MB, as g++ writes it for the torch of the table below."
    return {"header": large, "figures": "\n".join(costs), "where": _where(stored)}


def state() -> dict[str, str]:
    """That of docs/state.md: what PyTorch does with objects in C++, by release."""
    stored = _read(CLASSES)
    versions = sorted(stored, key=lambda version: [int(n) for n in version.split(".")])
    cells = ["| | " + " | ".join(f"torch {v}" for v in versions) + " |", "|---|" + "---|" * len(versions)]
    for name in stored[versions[0]]["cells"]:
        said = [stored[v]["cells"].get(name, "untried") for v in versions]
        cells.append(f"| {name} | " + " | ".join(s.replace("|", "\\|") for s in said) + " |")
    return {"releases": "\n".join(cells)}


PAGES = {
    ROOT / "docs" / "ways-in.md": ways_in,
    ROOT / "docs" / "state.md": state,
    ROOT / "docs" / "gradients.md": gradients,
    ROOT / "docs" / "shipping.md": shipping,
    ROOT / "docs" / "cpp.md": cpp,
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
