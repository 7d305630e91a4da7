"""Writes the tables of the pages in docs that have figures from stored results.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
AUTOGRAD = ROOT / "benchmarks" / "results" / "autograd.json"
CONV_BN = {n: ROOT / "benchmarks" / "results" / f"conv_bn-{n}.json" for n in ("cuda", "cpu", "training")}
CPP = ROOT / "benchmarks" / "results" / "cpp.json"
RECURRENT = ROOT / "benchmarks" / "results" / "recurrent.json"
CLASSES = ROOT / "tests" / "classes.json"
WAYS_IN = ROOT / "benchmarks" / "results" / "ways_in.json"
SHIPPING = ROOT / "benchmarks" / "results" / "shipping.json"
GRAPHS = [ROOT / "benchmarks" / "results" / f"graph_conv-{device}.json" for device in ("cuda", "cpu")]
SHARDING = ROOT / "benchmarks" / "results" / "sharding.json"
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


def graphs() -> dict[str, str]:
    """That of docs/graphs.md: graph convolutions on a GPU and on a CPU."""
    tables = []
    for file in (f for f in GRAPHS if f.exists()):
        stored = _read(file)
        lines = ["| | opwright | the others | ratio to the best | wanted |", "|---|---:|---|---:|---:|"]
        for r in stored["rows"]:
            unit, values = r["unit"], r["values"]
            others = ", ".join(f"{n} {v:.3g}" for n, v in values.items() if n != "opwright")
            added = f" (+ {r['added']:.3g})" if "added" in r else ""
            ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f}"
            ours = f"{values['opwright']:.3g} {unit}{added}"
            note = f", {r['note']}" if "note" in r else ""
            lines.append(f"| {r['figure']}{note} | {ours} | {others} | {ratio} | {r['limit']} |")
        where = stored["machine"]["gpu"] or f"{stored['machine']['cpu']}, {stored['machine']['threads']} threads"
        tables += [*lines, "", f"{where}, torch {stored['versions']['torch']}, {stored['date']}.", ""]
    return {"graphs": "\n".join(tables).rstrip()}


def distributed() -> dict[str, str]:
    """Those of docs/distributed.md: wrong rules, what a call costs, what the proof takes and finds."""
    sys.path.insert(0, str(ROOT))
    from tests.broken_rules import BROKEN_RULES

    stored = _read(SHARDING)
    rules = ["| operator | what its rule gets wrong |", "|---|---|"]
    rules += [f"| {b.name} | {b.mistake} |" for b in BROKEN_RULES]
    calls = ["| | ours | PyTorch's | ratio | wanted |", "|---|---:|---:|---:|---:|"]
    for r in stored["calls"]:
        calls.append(
            f"| {r['figure']} | {r['ours']:.1f} µs | {r['other']:.1f} µs | {r['ratio']:.2f} | ≤ {r['limit']:.1f} |"
        )
    proof, wrong, seeds = stored["property"], stored["rules"], stored["seeds"]
    text = (
        f"The property over all operators took {proof['seconds']:.0f} s for {proof['cases']:,} cases (wanted: under "
        f"{proof['limit']:.0f} s). Of {wrong['wrong']} wrong rules {wrong['rejected']} were rejected. With "
        f"{seeds['seeds']} seeds, {seeds['cases']:,} cases of all operators, there were {seeds['failures']} false "
        f"alarms.\n"
        f"{_where(stored)}"
    )
    return {"rules": "\n".join(rules), "calls": "\n".join(calls), "proof": text}


def conv_bn() -> dict[str, str]:
    """Those of docs/conv_bn.md: time on the device, memory, and a model that trains."""
    stored, cpu, training = (_read(CONV_BN[n]) for n in ("cuda", "cpu", "training"))
    compiled = {r["row"]: r["ms"]["compile"] for r in stored.get("compiled", ())}
    device = [
        "| forward and backward, ms on the device | eager | torch.compile | ours | of eager | wanted |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for r in stored["rows"]:
        other = f"{compiled[r['row']]:.3f}" if r["row"] in compiled else ""
        figures = f"{r['ms']['eager']:.3f} | {other} | {r['ms']['ours']:.3f} | {r['ratio']:.2f} | ≤ {r['limit']:.2f}"
        device.append(f"| {r['row']} | {figures} |")
    blocks = ["| eight blocks, 64→64, 56² | kept, MB | peak, MB | ms with the host |", "|---|---:|---:|---:|"]
    for name in ("blocks", "residual blocks"):
        for who in ("eager", "ours"):
            r = stored[name][who]
            said = "with residuals, " if name == "residual blocks" else ""
            blocks.append(f"| {said}{who} | {r['kept_mb']:.0f} | {r['peak_mb']:.0f} | {r['host_ms']:.2f} |")
    on_cpu = ["| forward and backward, ms | eager | ours | of eager | wanted |", "|---|---:|---:|---:|---:|"]
    for r in cpu["rows"]:
        figures = f"{r['ms']['eager']:.2f} | {r['ms']['ours']:.2f} | {r['ratio']:.2f} | ≤ {r['limit']:.2f}"
        on_cpu.append(f"| {r['row']} | {figures} |")
    every = len(training["runs"]["eager"]["losses"]) // 4
    steps = [every * k - 1 for k in (1, 2, 3, 4)]
    curves = [
        f"| loss at step | {' | '.join(str(s + 1) for s in steps)} | ms a step | peak, MB |",
        "|---|" + "---:|" * 6,
    ]
    for name, run in training["runs"].items():
        losses = " | ".join(f"{run['losses'][s]:.3f}" for s in steps)
        peak = "" if run["peak_mb"] is None else f"{run['peak_mb']:.0f}"
        curves.append(f"| {name} | {losses} | {run['ms']:.1f} | {peak} |")
    curves += ["", f"In the mean the two eager runs are {training['gap_of_eager_runs']:.3f} apart, fused and eager "]
    curves[-1] += f"{training['gap_of_fused']:.3f}."
    return {
        "device": "\n".join(device),
        "blocks": "\n".join(blocks),
        "where": _where_on(stored),
        "cpu": "\n".join(on_cpu),
        "where cpu": _where_on(cpu),
        "training": "\n".join(curves),
        "where training": _where_on(training),
    }


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
    ROOT / "docs" / "graphs.md": graphs,
    ROOT / "docs" / "distributed.md": distributed,
    ROOT / "docs" / "conv_bn.md": conv_bn,
    ROOT / "docs" / "lltm.md": sequences,
    ROOT / "src" / "opwright" / "ops" / "lltm" / "NOTES.md": recurrent,
}


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _where(stored: dict[str, Any]) -> str:
    versions = stored["versions"]
    return f"{stored['machine']['cpu']}, torch {versions['torch']}, Python {versions['python']}, {stored['date']}."


def _where_on(stored: dict[str, Any]) -> str:
    gpu = stored["machine"]["gpu"]
    return _where(stored) if gpu is None else f"{gpu}, {_where(stored)}"


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
