"""How many operators that are wrong on purpose the check rejects, and how many PyTorch's own tools do.

    python benchmarks/check.py [--json FILE] [OP …]

The same samples go to `ow.check` and to torch.library.opcheck, torch.autograd.gradcheck and gradgradcheck: in the
dtypes that the kernels claim, and in every layout but the one with strides beyond 2³¹, all of whose memory opcheck
would copy. Each operator is tried in a process of its own; that it ends its process counts as caught, that it takes too
long does not. A tool catches an operator where it rejects a call and accepts the same call of the operator without its
kernels and formulas. Where operators are named, FILE keeps its rows of the others, each with the date that it is of.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.testing._internal.optests  # what opcheck imports when it runs: better once than in every process
from torch import Tensor
from torch.utils._pytree import tree_map

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from see_through import heading

import opwright as ow
from opwright.kit.check.cases import Subject
from opwright.kit.check.layouts import PLAIN
from opwright.kit.check.report import NotApplicable
from opwright.kit.spec.operator import Spec
from opwright.kit.spec.samples import Sample
from tests.broken_ops import BROKEN, Broken

Tool = Callable[[ow.Op[..., Any], Sample, bool], None]


def opcheck(op: ow.Op[..., Any], sample: Sample, plain: bool) -> None:
    positional, named = op.signature.encode(op.signature.bind(sample.args, sample.kwargs))
    leaves = tree_map(_leaf, tuple(positional))
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    # Tracing takes a hundred times as long as the rest, and does not look at values or strides.
    torch.library.opcheck(op.overload, leaves, named, test_utils=utilities if plain else utilities[:3])


def gradcheck(op: ow.Op[..., Any], sample: Sample, plain: bool) -> None:
    _differences(torch.autograd.gradcheck, op, sample)


def gradgradcheck(op: ow.Op[..., Any], sample: Sample, plain: bool) -> None:
    _differences(torch.autograd.gradgradcheck, op, sample)


SMALL = 64
"""Up to so many elements every one is moved by itself; beyond, PyTorch's fast mode moves them together."""
MEMORY, SECONDS = 8 << 30, 180
"""What the tools may take for one operator."""
LARGE = 10_000
"""More elements than finite differences can be asked for."""
TOOLS: dict[str, Tool] = {"opcheck": opcheck, "gradcheck": gradcheck, "gradgradcheck": gradgradcheck}


def _leaf(value: Any) -> Any:
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return value.detach().requires_grad_()
    return value


def _differences(tool: Callable[..., Any], op: ow.Op[..., Any], sample: Sample) -> None:
    """Finite differences need double precision, and somebody to differentiate with respect to."""
    given = [t for v in (*sample.args, *sample.kwargs.values()) for t in (v if isinstance(v, list) else [v])]
    wide = [t.dtype in (torch.float64, torch.complex128) for t in given if isinstance(t, Tensor)]
    if not op.signature.differentiable_inputs or not any(wide) or any(p.mutated for p in op.signature.parameters):
        return
    leaves = tree_map(_leaf, sample.args)
    flat = [t for v in leaves for t in (v if isinstance(v, list) else [v]) if isinstance(t, Tensor)]
    if not any(t.requires_grad and t.numel() for t in flat) or sum(t.numel() for t in flat) > LARGE:
        return

    def call(*tensors: Tensor) -> Any:
        feed = iter(tensors)
        args = tree_map(lambda v: next(feed) if isinstance(v, Tensor) else v, leaves)
        out = op(*args, **sample.kwargs)
        outs = out if isinstance(out, (tuple, list)) else (out,)
        return tuple(o for o in outs if o.is_floating_point() or o.is_complex())

    if not any(o.requires_grad for o in call(*flat)):
        raise AssertionError("no result of it has a gradient")
    small = sum(t.numel() for t in flat) <= SMALL
    tool(call, tuple(flat), fast_mode=not small, check_undefined_grad=tool is torch.autograd.gradcheck)


def samples(op: ow.Op[..., Any]) -> Iterator[tuple[Sample, bool]]:
    """The author's samples as our own check draws them, in the kernels' dtypes and in every layout; and whether it is
    a plain one in the operator's main dtype."""
    subject = Subject(op)
    for case in subject.cases():
        own = not (case.variant or case.values) and case.layout != "far"
        if own and case.dtype in (subject.fast_dtypes or subject.dtypes):
            try:
                yield subject.draw(case), case.layout == PLAIN and case.dtype == subject.main
            except NotApplicable:
                continue


def twin(op: ow.Op[..., Any]) -> ow.Op[..., Any]:
    """The operator without its kernels and formulas: its reference, behind the dispatcher."""
    return ow.Op(Spec(op.name, "twins", __name__, op.signature, op.reference, opaque=True))


def rejected(tool: Tool, op: ow.Op[..., Any], sample: Sample, plain: bool) -> str | None:
    try:
        tool(op, sample, plain)
    except Exception as e:
        return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"
    return None


def try_tools(broken: Broken, say: Callable[..., None]) -> None:
    """Say before each tool that it begins, so that it is known whom a crash belongs to, and after it what it found."""
    op = broken.op
    right = twin(op)
    for name, tool in TOOLS.items():
        say(tool=name)
        tried = 0
        for tried, (sample, plain) in enumerate(samples(op), 1):
            said = rejected(tool, op, sample, plain)
            if said is not None and rejected(tool, right, sample, plain) is None:
                say(tool=name, cases=tried, said=said)
                break
        else:
            say(tool=name, cases=tried, said=None)


def tools_on(broken: Broken) -> dict[str, Any]:
    """What each of PyTorch's tools says about an operator, in a process that it may end."""
    incoming, outgoing = os.pipe()
    child = os.fork()  # of a process that has imported everything and run nothing
    if child == 0:
        status = 1
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(SECONDS)
        try:
            with open(outgoing, "w", encoding="utf-8") as out:
                try_tools(broken, lambda **answer: print(json.dumps(answer), file=out, flush=True))
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(outgoing)
    with open(incoming, encoding="utf-8") as answers:
        told = [json.loads(line) for line in answers]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    row: dict[str, Any] = dict.fromkeys(TOOLS) | {a["tool"]: a["said"] for a in told if "said" in a}
    if code == -signal.SIGALRM:
        print(f"{broken.name}: given up at {told[-1]['tool']} after {SECONDS} s", file=sys.stderr)
    elif code < 0 and told:
        row[told[-1]["tool"]] = f"it crashed with {signal.Signals(-code).name}"
    elif code:
        raise RuntimeError(f"{broken.name}: the tools could not be tried on it")
    return {**row, "cases": max((a.get("cases", 0) for a in told), default=0)}


def check_on(broken: Broken) -> str | None:
    """The sentence in which our own check rejects an operator."""
    failures = ow.check(broken.op, only=[broken.property]).failures
    return next((f.message for f in failures if broken.says in f.message), None)


def progress(wanted: list[Broken], what: str) -> Iterator[Broken]:
    for i, broken in enumerate(wanted, 1):
        print(f"{what}: {i} of {len(wanted)}, {broken.name}", file=sys.stderr, flush=True)
        yield broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("ops", nargs="*")
    chosen = parser.parse_args()
    wanted = [b for b in BROKEN if not chosen.ops or b.name in chosen.ops]
    warnings.simplefilter("ignore")
    rows = []
    tools = [tools_on(broken) for broken in progress(wanted, "PyTorch's tools")]  # before this process runs anything
    for broken, told in zip(progress(wanted, "the check"), tools, strict=True):
        about = {"op": broken.name, "theme": broken.theme, "property": broken.property}
        rows.append({**about, "check": check_on(broken), **told, "date": heading()["date"]})
    if chosen.json and chosen.ops and chosen.json.exists():
        before = json.loads(chosen.json.read_text())
        known = {row["op"]: {"date": before["date"], **row} for row in before["rows"]} | {
            row["op"]: row for row in rows
        }
        rows = [known[b.name] for b in BROKEN if b.name in known]
    for row in rows:
        marks = "  ".join(f"{name} {'yes' if row[name] else ' - '}" for name in ("check", *TOOLS))
        print(f"{row['op']:26} {marks}")
    found = {"operators": len(rows), "check": sum(r["check"] is not None for r in rows)}
    found |= {name: sum(r[name] is not None for r in rows) for name in TOOLS}
    found["pytorch"] = sum(any(r[name] is not None for name in TOOLS) for r in rows)
    print(", ".join(f"{name}: {count}" for name, count in found.items()))
    if chosen.json:
        chosen.json.write_text(json.dumps({**heading(), "caught": found, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
