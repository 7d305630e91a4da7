"""Running the compiler: sources to objects, objects to a library."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from opwright.kit.build import cache, toolchain
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import Unavailable, explain_failure


def build(plan: Plan, force: bool = False, hint: str = "") -> cache.Entry:
    """The plan's library, from the cache or compiled now with a line of progress, which ends in the hint."""
    root = cache.open_folder()
    key = plan.key
    if force:
        cache.prune(root, lambda entry: entry.about.get("key") != key)
    return cache.obtain(root, key, plan.name, lambda private: _compile(plan, root, private, hint))


def _compile(plan: Plan, root: Path, private: Path, hint: str) -> dict[str, Any]:
    names = ", ".join(s.name for s in plan.sources)
    print(f"opwright: building {plan.name} ({names}) …", file=sys.stderr, flush=True)
    start = time.perf_counter()
    log_file = root / "logs" / f"{plan.key}.log"
    compiler = [*toolchain.compiler().command]
    common = [*plan.flags, *plan.filled_defines()]
    common += [f"-I{p}" for p in plan.includes] + [f"-isystem{p}" for p in toolchain.torch_includes()]
    log: list[str] = []

    def one(index: int) -> Path:
        # Numbered: every folder has a cpu.cpp, and two sources of one plan may share a name.
        output = private / f"{index}.o"
        command = [*compiler, *common, "-MD", "-MF", str(private / f"{index}.d")]
        _run([*command, "-c", str(plan.sources[index]), "-o", str(output)], plan, log, log_file, private)
        return output

    with concurrent.futures.ThreadPoolExecutor(min(toolchain.jobs(), len(plan.sources))) as pool:
        objects = list(pool.map(one, range(len(plan.sources))))
    libraries = toolchain.torch_libraries()
    # libtorch_cpu by name: symbols found through libtorch alone are missing in other processes.
    link = ["-shared", *map(str, objects), f"-L{libraries}", "-Wl,--no-as-needed", "-ltorch_cpu", "-ltorch", "-lc10"]
    output = private / cache.LIBRARY
    _run([*compiler, *link, *plan.options.ldflags, "-o", str(output)], plan, log, log_file, private)
    took = time.perf_counter() - start
    print(f"opwright: built {plan.name} in {took:.1f} s{hint}", file=sys.stderr, flush=True)
    return {
        "key": plan.key,
        "name": plan.name,
        "sources": [str(s) for s in plan.sources],
        "flags": common,
        "seconds": round(took, 3),
        "torch": toolchain.torch_identity(),
        "more_headers": _headers_not_seen(plan, private),
    }


def _run(command: list[str], plan: Plan, log: list[str], log_file: Path, private: Path) -> None:
    # A compiler's messages are read by machine, and its scratch files stay in the private folder.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(private)}
    if os.environ.get("OPWRIGHT_VERBOSE", "") not in ("", "0"):
        print(" ".join(command), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment, cwd=private
        )
    except OSError as e:
        raise Unavailable(f"{plan.name}: the compiler {command[0]} does not start ({e.strerror}); set CXX") from None
    said = done.stdout + done.stderr
    log.append(" ".join(command) + "\n" + said)
    if done.returncode:
        try:
            log_file.write_text("\n".join(log), encoding="utf-8")
        except OSError:
            raise explain_failure(plan.name, done.returncode, said, None) from None
        raise explain_failure(plan.name, done.returncode, said, log_file)


def _headers_not_seen(plan: Plan, private: Path) -> dict[str, str]:
    """Headers that the compiler read and the plan did not find (a name made by a macro): checked at each look-up."""
    system = (str(toolchain.torch_includes()[0]), "/usr/", "/opt/", "/lib/")
    known = {str(p) for p in (*plan.headers, *(s.resolve() for s in plan.sources))}
    more: dict[str, str] = {}
    for depends in private.glob("*.d"):
        text = depends.read_text(encoding="utf-8", errors="replace").partition(":")[2].replace("\\\n", " ")
        for name in re.findall(r"(?:\\.|[^\s\\])+", text):
            path = Path(re.sub(r"\\(.)", r"\1", name).replace("$$", "$")).resolve()
            if str(path) not in known and not str(path).startswith(system) and path.is_file():
                more[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return more


def write_compile_commands(plans: list[Plan], folder: Path) -> Path:
    """compile_commands.json for editors."""
    import json

    rows = []
    for plan in plans:
        for source in plan.sources:
            includes = [f"-I{p}" for p in plan.includes] + [f"-isystem{p}" for p in toolchain.torch_includes()]
            command = [*toolchain.compiler().command, *plan.flags, *plan.filled_defines(), *includes, "-c", str(source)]
            rows.append({"directory": str(source.parent), "file": str(source), "arguments": command})
    file = folder / "compile_commands.json"
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return file
