"""torch/extension.h, precompiled: made once an extension has been built, so that the next build is short.

It is large, some 800 MB, and takes as long to make as a build. So a process of its own makes it, behind the first build
and never before it. Nobody waits for it, and it is an entry of the cache, which goes when it is not used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from opwright.kit.build import cache, own, program, room, toolchain
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import Unavailable
from opwright.kit.spec.options import Options

NAME = "torch/extension.h, precompiled"
HEADER = "header.h"
COMPILED = "header.h.gch"
ROOM = 2 << 30
"""What the cache must be allowed to hold: less, and the header would push out what it is to help."""
MEMORY = 4 << 30
"""The free memory that making it takes, and some more."""

# What may stand before the header without changing it: comments, and headers of the system.
_BEFORE = re.compile(
    r"(\s|//[^\n]*\n|/\*.*?\*/|#[ \t]*pragma[ \t]+once|#[ \t]*include[ \t]*<(?!torch/)[\w./+-]+>)*"
    r"#[ \t]*include[ \t]*[<\"]torch/extension\.h[>\"]",
    re.DOTALL,
)


def wanted() -> bool:
    """Whether headers are precompiled here: by g++, unless OPWRIGHT_PCH=0 says otherwise."""
    return os.environ.get("OPWRIGHT_PCH", "") != "0" and toolchain.compiler().is_gcc


def begins(plan: Plan, source: Path) -> bool:
    """Whether a source begins with the header, so that one read before it means the same: before it stand headers
    of the system alone, for one of the project may set what PyTorch's look at."""
    found = None if source.suffix == ".cu" else _BEFORE.match(source.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        return False
    before = re.findall(r"<([^>]+)>", found[0].rpartition("torch/extension.h")[0])
    return not any((folder / name).is_file() for name in before for folder in (source.parent, *plan.searched))


def of(plan: Plan) -> Plan:
    """The precompiled header for an extension's flags: one serves all that have the same."""
    options = Options(abi="aten", cxxflags=plan.asked, include=plan.options.include)
    named = tuple(d for d in plan.defines if not d.startswith("TORCH_EXTENSION_NAME="))
    source = toolchain.torch_includes()[0] / "torch" / "extension.h"
    return replace(plan, name=NAME, sources=(source,), options=options, defines=named, device="cpu")


def flags(plan: Plan, root: Path) -> list[str]:
    """What has an extension's source compiled with the precompiled header: nothing where there is none for its flags,
    or where it does not begin with that header."""
    if not wanted() or not begins(plan, plan.sources[0]):
        return []
    with contextlib.suppress(Unavailable, OSError):
        found = _look_up(root, plan)
        return [] if found is None else ["-include", str(found)]
    return []


def blamed(plan: Plan, root: Path, said: str) -> bool:
    """Whether a compiler failed for the sake of the precompiled header, which is then taken away."""
    broken = "internal compiler error" in said or COMPILED in said
    if broken:
        cache.discard(root, _key(plan))
    return broken


def _look_up(root: Path, plan: Plan) -> Path | None:
    key = _key(plan)
    entry = cache.look_up(root, key)
    if entry is None:
        return None
    compiled = entry.library.parent / COMPILED
    cache.refuse_shared(compiled)
    if [*cache.identity(compiled.stat())[2:]] != entry.about.get("seen"):
        cache.discard(root, key)  # not as it was made
        return None
    return entry.library.parent / HEADER


def _key(plan: Plan) -> str:
    return f"{of(plan).key}h"


def start(plan: Plan) -> None:
    """Have the header made for the next build of an extension, by a process that outlives this one."""
    most = room.limit()
    if not wanted() or not any(begins(plan, source) for source in plan.sources) or (most is not None and most < ROOM):
        return
    if toolchain.free_memory() < MEMORY or cache.look_up(cache.open_folder(), _key(plan)) is not None:
        return
    told = {"cxxflags": plan.asked, "include": plan.options.include, "defines": plan.defines}
    command = [sys.executable, "-m", "opwright.kit.build.header", json.dumps(told)]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    # From the root folder, which nobody's modules lie in: what was said relative to another is said in full.
    places = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPWRIGHT_CACHE_DIR": str(cache.folder())}
    quiet |= {"env": {**os.environ, **places}, "cwd": "/"}
    # By a shell that ends at once: nobody here waits for it, and Python warns of a child that nobody waited for.
    with contextlib.suppress(OSError):
        subprocess.run(["/bin/sh", "-c", '"$0" "$@" &', *command], start_new_session=True, check=False, **quiet)


def make(plan: Plan) -> None:
    """Make the header for an extension's flags, unless it is there."""
    root, key, source = cache.open_folder(), _key(plan), of(plan)

    def compile_it(private: Path) -> dict[str, Any]:
        start = time.perf_counter()
        (private / HEADER).write_text("#include <torch/extension.h>\n", encoding="utf-8")
        (private / cache.LIBRARY).write_text(f"{NAME}: {COMPILED}\n", encoding="utf-8")
        places = [f"-I{p}" for p in source.includes]
        places += [part for p in toolchain.torch_includes() for part in ("-isystem", str(p))]
        places += ["-isystem", str(toolchain.python_includes())]
        flags = [*source.for_gcc(), *source.flags, *source.filled_defines(), *places]
        command = [*toolchain.compiler().command, *flags, "-x", "c++-header", str(private / HEADER)]
        done = program.run([*command, "-o", str(private / COMPILED)], cwd=private)
        if done.returncode:
            raise Unavailable(f"{NAME}: {done.stderr}")
        about = {"key": key, "name": NAME, "flags": flags, "seconds": round(time.perf_counter() - start, 3)}
        seen = cache.identity((private / COMPILED).stat())[2:]
        return about | {"torch": toolchain.torch_identity(), "beside": [HEADER, COMPILED], "seen": seen}

    cache.obtain(root, key, NAME, compile_it)
    room.make_room(root, lambda: {key, *own.keys()})


def _main(told: str) -> None:
    with contextlib.suppress(OSError):
        os.nice(10)
    given = json.loads(told)
    options = Options(abi="aten", cxxflags=tuple(given["cxxflags"]), include=tuple(given["include"]))
    make(Plan(NAME, (), options, tuple(given["defines"]), extension=True))


if __name__ == "__main__":
    _main(sys.argv[1])
