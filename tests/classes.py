"""What PyTorch does with objects that are held in C++, tried under the torch at hand.

    python tests/classes.py [--json FILE]

Each cell runs in a process of its own. Under another torch: PYTHONPATH=src:FOLDER python tests/classes.py, where FOLDER
holds that torch. The results, by version, go into tests/classes.json, from which the table in docs/state.md is made.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "classes.json"

LOAD = f"""
import pickle, copy, io, torch, opwright as ow
stacks = ow.load_classes({str(FOLDER.parent / "examples" / "state" / "stack.cpp")!r}, name="stacks")
stack = stacks.Stack([torch.ones(2), torch.ones(2)])
"""

# PyTorch's way for Python objects in graphs, here with one that holds a stack.
OPAQUE = """
import torch._library.opaque_object as opaque
from torch._opaque_base import OpaqueBase
register = getattr(opaque, "register_custom_class", None) or opaque.register_opaque_type
class Holder(OpaqueBase):
    def __init__(self, stack):
        self.stack = stack
register(Holder, typ="reference")
torch.library.define("opaque_cells::total", f"({opaque.get_opaque_type_name(Holder)} holder, Tensor x) -> Tensor")
@torch.library.impl("opaque_cells::total", "CompositeExplicitAutograd")
def total(holder, x):
    return x + torch.ops.stacks.total(holder.stack)
@torch.library.register_fake("opaque_cells::total")
def fake(holder, x):
    return torch.empty_like(x)
holder = Holder(stack)
"""
UNTRIED = "untried"
"""A cell of a release that was not at hand when the cell was written."""

CELLS = {
    "made, called, passed to an operator": """
stack.push(torch.zeros(2))
assert stack.size() == 3 and torch.equal(torch.ops.stacks.total(stack), torch.full((2,), 2.0))
""",
    "pickle": """
back = pickle.loads(pickle.dumps(stack))
assert back.size() == 2 and torch.equal(back.pop(), torch.ones(2))
""",
    "copy.deepcopy": """
other = copy.deepcopy(stack)
other.push(torch.zeros(2))
assert (stack.size(), other.size()) == (2, 3)
""",
    "torch.save, torch.load(weights_only=False)": """
file = io.BytesIO()
torch.save({"stack": stack}, file)
file.seek(0)
assert torch.load(file, weights_only=False)["stack"].size() == 2
""",
    "torch.load, as it is by default": """
file = io.BytesIO()
torch.save({"stack": stack}, file)
file.seek(0)
assert torch.load(file)["stack"].size() == 2
""",
    "TorchScript, torch.classes": """
@torch.jit.script
def run(x: torch.Tensor) -> torch.Tensor:
    made = torch.classes.stacks.Stack([x])
    made.push(x + 1)
    return torch.ops.stacks.total(made)
assert torch.equal(run(torch.ones(2)), torch.full((2,), 3.0))
""",
    "TorchScript, saved in a module": """
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = torch.classes.stacks.Stack([torch.ones(2)])
    def forward(self, x):
        return x + torch.ops.stacks.total(self.stack)
file = io.BytesIO()
torch.jit.save(torch.jit.script(Module()), file)
file.seek(0)
assert torch.equal(torch.jit.load(file)(torch.zeros(2)), torch.ones(2))
""",
    "torch.compile around a call": """
out = torch.compile(lambda x: x * 2 + torch.ops.stacks.total(stack), backend="aot_eager")(torch.ones(2))
assert torch.equal(out, torch.full((2,), 4.0))
""",
    "torch.compile(fullgraph=True)": """
out = torch.compile(lambda x: x * 2 + torch.ops.stacks.total(stack), backend="aot_eager", fullgraph=True)(torch.ones(2))
assert torch.equal(out, torch.full((2,), 4.0))
""",
    "torch.compile(fullgraph=True) of an adopted operator": """
def total(x: torch.Tensor, stack: stacks.Stack) -> torch.Tensor:
    return x + torch.ops.stacks.total(stack)
def forward(x, stack):
    return x + torch.ops.stacks.total(stack)
op = ow.adopt(forward, reference=total)
assert torch.equal(op(torch.zeros(2), stack), torch.full((2,), 2.0))
out = torch.compile(lambda x: op(x, stack), backend="aot_eager", fullgraph=True)(torch.ones(2))
assert torch.equal(out, torch.full((2,), 3.0))
""",
    "torch.export": """
class Module(torch.nn.Module):
    def forward(self, x):
        return x + torch.ops.stacks.total(stack)
program = torch.export.export(Module(), (torch.ones(2),), strict=False)
assert torch.equal(program.module()(torch.zeros(2)), torch.full((2,), 2.0))
""",
    "opaque objects, by the name": """
import torch._library.opaque_object as opaque
found = [n for n in ("register_opaque_type", "register_custom_class") if hasattr(opaque, n)]
print("SAYS", " and ".join(found) or "neither")
assert found
""",
    "an opaque object around it, passed to an operator": f"""{OPAQUE}
assert torch.equal(torch.ops.opaque_cells.total(holder, torch.zeros(2)), torch.full((2,), 2.0))
""",
    "an opaque object around it, torch.compile(fullgraph=True)": f"""{OPAQUE}
out = torch.compile(lambda x, h: torch.ops.opaque_cells.total(h, x) * 2, backend="aot_eager", fullgraph=True)
assert torch.equal(out(torch.zeros(2), holder), torch.full((2,), 4.0))
""",
    "an opaque object around it, torch.export": f"""{OPAQUE}
class Module(torch.nn.Module):
    def forward(self, x, h):
        return torch.ops.opaque_cells.total(h, x) * 2
program = torch.export.export(Module(), (torch.ones(2), holder), strict=False)
assert torch.equal(program.module()(torch.zeros(2), holder), torch.full((2,), 4.0))
""",
}


def run(cell: str) -> str:
    """What comes of a cell: `works`, what it says, or the error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cell.py"  # TorchScript reads its source
        file.write_text(LOAD + cell, encoding="utf-8")
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 0:
        said = [line.removeprefix("SAYS ") for line in done.stdout.splitlines() if line.startswith("SAYS ")]
        return said[0] if said else "works"
    if done.returncode < 0:
        return f"ends the process (signal {-done.returncode})"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)
    errors = [line for line in plain.splitlines() if line and not line.startswith((" ", "\t", "["))]
    named = [line for line in errors if ("Error" in line or "Unsupported" in line) and ":" in line]
    return f"fails: {(named or errors or ['?'])[-1].partition('. ')[0][:160]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    asked = parser.parse_args()
    version = importlib.metadata.version("torch").partition("+")[0]
    found = {name: run(cell) for name, cell in CELLS.items()}
    known = json.loads(asked.json.read_text(encoding="utf-8")) if asked.json.exists() else {}
    known[version] = {"python": sys.version.split()[0], "cells": found}
    asked.json.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    for name, what in found.items():
        print(f"{name}: {what}")


if __name__ == "__main__":
    main()
