"""Builds the kernels of packages and puts them in, with the manifest by which they are found.

Run by the hook of setuptools (`_opwright_build.py`) on what goes into a wheel:

    python -m opwright.kit.ship.fill WISHES FOLDER …
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.kit import load
from opwright.kit.build import cache, compile, cuda, own, shipped, toolchain
from opwright.kit.build.bound import Bound
from opwright.kit.build.library import Library
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import BuildError, Refused, Unavailable
from opwright.kit.dispatch import registry
from opwright.kit.dispatch.kernel import Kernel
from opwright.kit.op import Op
from opwright.kit.ship.audit import Audit, audit
from opwright.version import OLDEST_TORCH, __version__

SELF = "opwright"
"""The package that ships the C++ of opwright's own as well."""


class NotShipped(Exception):
    """A package cannot be shipped, and why."""


@dataclass
class Filled:
    """What was put into packages, and what follows for the wheel."""

    rows: list[shipped.Row] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What goes along as sources alone, and why."""

    @property
    def tag(self) -> tuple[str, str, str]:
        """The wheel's tag: Python, its ABI, and the platform that every library in it runs on."""
        python = next((row["python"] for row in self.rows if row["python"] and not row.get("part")), None)
        names = ("py3", "none") if python is None else (python.replace("cpython-", "cp"),) * 2
        platforms = [found.platform for found in self.audits]
        return (*names, max(platforms, key=_glibc) if platforms else "any")


def fill(folder: Path, wishes: dict[str, Any]) -> Filled:
    """Build the kernels of the package in a folder and put them there, in the place of what was there."""
    with _aside(folder / shipped.FOLDER) as place:
        return _fill(folder, place, wishes)


@contextlib.contextmanager
def _aside(place: Path) -> Iterator[Path]:
    """A folder whose place is free inside, and which is there again if what was to take its place does not come."""
    kept = place.with_name(f"{place.name}.before")
    if place.exists():
        shutil.rmtree(kept, ignore_errors=True)
        place.rename(kept)
    try:
        yield place
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        if kept.exists():
            kept.rename(place)
        raise
    shutil.rmtree(kept, ignore_errors=True)


def _fill(folder: Path, place: Path, wishes: dict[str, Any]) -> Filled:
    filled = Filled()
    operators = _operators(folder)
    _refuse_namespaces(folder.name, operators)
    libraries = [*_libraries(operators, wishes, filled)]
    with compile.hurried(toolchain.jobs()) as pool:
        for future in [pool.submit(library.find, library.plan()) for library in libraries]:
            future.result()
    for library in libraries:
        plan = library.plan()
        entry = library.find(plan)
        library.bound = [Bound(*row) for row in entry.about.get("kernels", ())]
        for op in operators:
            for kernel in op.kernels:
                if kernel.library is library:
                    kernel.refuse_other_types(op)
        filled.rows.append(_put(place, entry, _row(folder, library, plan, entry), filled))
    own_rows = [*_own_parts(place, filled)] if folder.name == SELF else []
    if filled.rows or own_rows:
        _write(place, {"format": shipped.FORMAT, "libraries": filled.rows, "own": own_rows})
    filled.rows += own_rows
    for python in wishes.get("natives", ()) if folder.name == SELF else ():
        _ask(python, folder)
    return filled


def _operators(folder: Path) -> list[Op[..., Any]]:
    if folder.name == SELF:
        here = Path(__file__).resolve().parents[2]
        if here != folder:
            raise NotShipped(f"opwright was imported from {here}, and {folder} is to be shipped")
    else:
        try:
            loaded = load.load(folder)
        except FileNotFoundError as e:
            raise NotShipped(f"{e}; name the packages that have operators in [tool.opwright], packages = […]") from None
        for mistake in vars(loaded).get("__broken__", {}).values():
            raise NotShipped(f"an operator cannot be loaded, and would be missing: {load.said(mistake)}")
    found = [op for op in registry.operators() if op.file and Path(op.file).resolve().is_relative_to(folder)]
    return list(dict.fromkeys(rung for op in found for rung in op.ladder))


def _refuse_namespaces(package: str, operators: Iterable[Op[..., Any]]) -> None:
    for op in operators:
        if op.namespace in shipped.RESERVED or (op.namespace != package and shipped.is_anothers(op.namespace)):
            raise NotShipped(
                f"{op.name}: its namespace is {op.namespace!r}, which is not its own; "
                + ("call the package otherwise" if op.namespace == package else f"let it be {package!r}, as it is ")
                + ("" if op.namespace == package else "where nothing else is said")
            )


def _libraries(operators: Iterable[Op[..., Any]], wishes: dict[str, Any], filled: Filled) -> Iterator[Library]:
    """The libraries to be built, each once; why another is not goes into `filled.left`."""
    no_cuda = _why_no_cuda(wishes)
    seen: set[Library] = set()
    for op in operators:
        for kernel in op.kernels:
            library = kernel.library
            if library is None or library in seen:
                continue
            seen.add(library)
            why = no_cuda if kernel.device == "cuda" else None
            if library.options.abi == "aten" and wishes.get("aten", "sources") == "sources":
                why = "it uses the whole of torch (abi='aten'), and a library would run with one torch alone"
            if why is None:
                yield library
            else:
                filled.left.append(f"{_name(kernel)}: {why}; its source goes along")


def _name(kernel: Kernel) -> str:
    file = kernel.library.file if kernel.library is not None else Path(kernel.name)
    return f"{file.parent.name}/{file.name}"


def _why_no_cuda(wishes: dict[str, Any]) -> str | None:
    wanted = wishes.get("cuda", "auto")
    if wanted is False:
        return "[tool.opwright] says cuda = false"
    try:
        cuda.nvcc()
    except Unavailable as e:
        if wanted is True:
            raise NotShipped(f"[tool.opwright] says cuda = true, and {e}") from None
        return str(e)
    return None


# --- rows ----------------------------------------------------------------------------------------------------------


def _row(folder: Path, library: Library, plan: Plan, entry: cache.Entry) -> shipped.Row:
    more = (plan.located(header) for header in entry.about.get("more", ()))
    files = [file for file in (*plan.sources, *plan.headers, *more) if file.resolve().is_relative_to(folder)]
    for include in library.options.include:
        if Path(include).is_absolute() and not Path(include).resolve().is_relative_to(folder):
            raise NotShipped(f"{library.file}: it includes from {include}, which lies outside of the package")
    native = next((flag for flag in library.options.cxxflags if re.fullmatch(r"-m(arch|cpu|tune)=native", flag)), None)
    if native is not None:
        raise NotShipped(
            f"{library.file}: {native} builds for the CPU at hand, and the wheel is for others; leave it out, or name "
            f"the oldest CPU that is to run it"
        )
    if not library.file.resolve().is_relative_to(folder):
        raise NotShipped(f"{library.file} lies outside of {folder}, and would not be there; put it into the package")
    return {
        "source": library.file.resolve().relative_to(folder).as_posix(),
        "sources": {f.resolve().relative_to(folder).as_posix(): shipped.digest_of(f) for f in files},
        "device": library.device,
        "namespace": library.namespace,
        "options": shipped.spell_options(library.options, folder),
        "python": sys.implementation.cache_tag if plan.uses_python else None,
        "abi": plan.options.abi,
    }


def _own_parts(place: Path, filled: Filled) -> Iterator[shipped.Row]:
    """opwright's own C++ for the torch and the Python at hand."""
    for part, plan in own.parts().items():
        python = sys.implementation.cache_tag if plan.uses_python else None
        row = {"part": part, "content": own.content(), "python": python, "abi": "aten"}
        yield _put(place, compile.build(plan), row, filled)


def _put(place: Path, entry: cache.Entry, row: shipped.Row, filled: Filled) -> shipped.Row:
    """Copy a library beside the manifest, and complete its row."""
    name = re.sub(r"[^\w]+", "_", f"{entry.about['name']}_{entry.about['key'][:16]}") + ".so"
    place.mkdir(exist_ok=True)
    place.chmod(0o755)
    content = entry.library.read_bytes()
    (place / name).write_bytes(content)
    (place / name).chmod(0o644)
    found = audit(place / name, abi=row["abi"], floor=OLDEST_TORCH)
    if found.problems:
        raise NotShipped("\n".join(found.problems))
    filled.audits.append(found)
    return row | {
        "name": entry.about["name"],
        "key": entry.about["key"],
        "kernels": entry.about.get("kernels", []),
        "file": name,
        "size": len(content),
        "sha256": entry.about["sha256"],
        "system": sys.platform,
        "machine": platform.machine(),
        "torch": shipped.public_version() if row["abi"] == "aten" else list(found.torch),
        "glibc": list(_glibc(found.platform)) or None,
        "arch": list(entry.about.get("arch", ())),
        "cuda": entry.about.get("cuda"),
        "opwright": __version__,
    }


def _glibc(tag: str) -> tuple[int, ...]:
    """The glibc that a platform's tag names.

    >>> _glibc("manylinux_2_34_x86_64")
    (2, 34)
    """
    found = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    return () if found is None else (int(found[1]), int(found[2]))


def _write(place: Path, manifest: dict[str, Any]) -> None:
    place.mkdir(exist_ok=True)
    (place / shipped.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    (place / shipped.MANIFEST).chmod(0o644)


# --- for other interpreters ----------------------------------------------------------------------------------------


def _ask(python: str, folder: Path) -> None:
    """Let another interpreter, with its own torch, add opwright's own C++ for both."""
    command = [python, "-m", "opwright.kit.ship.fill", json.dumps({"own": True}), str(folder)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder.parent)}, cwd=folder.parent, check=False)
    if done.returncode:
        raise NotShipped(f"{python} does not build opwright's own C++; see above")


def add_own(folder: Path) -> Filled:
    """Add opwright's own C++ for this torch and this Python to a package that is filled."""
    filled = Filled()
    place = folder / shipped.FOLDER
    manifest = json.loads((place / shipped.MANIFEST).read_text(encoding="utf-8"))
    rows = [*_own_parts(place, filled)]
    known = {(row["part"], row["torch"], row["python"]) for row in rows}
    manifest["own"] = [r for r in manifest["own"] if (r["part"], r["torch"], r["python"]) not in known] + rows
    _write(place, manifest)
    return filled


def choose_gpus(wishes: dict[str, Any]) -> None:
    """Let CUDA kernels be built for the GPUs that somebody wishes, or for all: other machines than this one."""
    if wishes.get("arch"):
        os.environ["OPWRIGHT_CUDA_ARCH"] = ";".join(wishes["arch"])
    elif not os.environ.get("OPWRIGHT_CUDA_ARCH"):
        os.environ["OPWRIGHT_CUDA_ARCH"] = ";".join(cuda.WITHOUT_GPU)


def main() -> None:
    wishes = json.loads(sys.argv[1])
    choose_gpus(wishes)
    whole = Filled()
    try:
        for folder in map(Path, sys.argv[2:]):
            filled = add_own(folder.resolve()) if wishes.get("own") else fill(folder.resolve(), wishes)
            whole.rows += filled.rows
            whole.audits += filled.audits
            whole.left += filled.left
    except (NotShipped, BuildError, Unavailable, Refused) as e:
        raise SystemExit(f"opwright: {e}") from None
    except Exception as e:  # whatever a package does when it is imported
        raise SystemExit(f"opwright: {load.said(e)}") from None
    for line in whole.left:
        print(f"opwright: left out {line}", file=sys.stderr)
    python, abi, where = whole.tag
    because = sorted({b for found in whole.audits if found.platform == where for b in found.because})
    if "answer" in wishes:
        answer = {"libraries": len(whole.rows), "python": python, "abi": abi, "platform": where}
        Path(wishes["answer"]).write_text(json.dumps(answer, indent=1), encoding="utf-8")
    why = f"; an older one would lack {', '.join(because[:4])}" if because else ""
    print(f"opwright: {len(whole.rows)} libraries, {python}-{abi}-{where}{why}", file=sys.stderr)


if __name__ == "__main__":
    main()
