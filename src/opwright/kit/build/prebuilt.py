"""Libraries that were built elsewhere: looked up before anything is compiled.

A folder of such libraries is one that `opwright build --to FOLDER` wrote: an entry as in the cache, under the part of
the key that is the same on every machine. The stable ABI lets them run under another torch and another Python; those of
`abi="aten"` are found under the torch that they were built for alone.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from opwright.kit.build import cache, cuda
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import NoCache


def folders() -> list[Path]:
    """Where they are looked for: the folders of OPWRIGHT_PREBUILT."""
    return [Path(os.path.expanduser(p)) for p in os.environ.get("OPWRIGHT_PREBUILT", "").split(os.pathsep) if p]


def look_up(plan: Plan) -> cache.Entry | None:
    """The library of a plan, if somebody built it for a machine like this one. Raise when it lies only where somebody
    else could have put it."""
    refused: NoCache | None = None
    for root in folders():
        try:
            entry = _read(root, plan.portable_key)
        except NoCache as e:
            refused = refused or e
            continue
        if entry is not None and _runs_here(entry) and _made_of_the_same(plan, entry):
            return entry
    if refused is not None:
        raise refused
    return None


def _read(root: Path, key: str) -> cache.Entry | None:
    place = root / "entries" / key
    try:
        place.stat()
        for each in (root, root / "entries", place):
            cache.refuse_shared(each, prebuilt=True)
        cache.refuse_open_way(place, prebuilt=True)
    except OSError:
        return None  # it is not there, or not for us to read
    return cache.read(place, prebuilt=True)


def _runs_here(entry: cache.Entry) -> bool:
    arch = entry.about.get("arch") or []
    here = cuda.gpus() if arch else []
    return all(cuda.runs_on(arch, gpu.capability) for gpu in here)


def _made_of_the_same(plan: Plan, entry: cache.Entry) -> bool:
    """Whether headers that only a compiler finds, which the key does not speak of, are here as they were there."""
    more: dict[str, str] = entry.about.get("more", {})
    return all(plan.read.digest(plan.located(name)) == digest for name, digest in more.items())


def write(plan: Plan, entry: cache.Entry, root: Path) -> Path:
    """Put a copy of a built library into a folder, to be carried to other machines."""
    place = root / "entries" / plan.portable_key
    for folder in (root, root / "entries", place):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
    # Without the paths of this machine, which mean nothing elsewhere.
    about = {k: v for k, v in entry.about.items() if k not in ("sources", "flags", "nvccflags")}
    _write(place / cache.LIBRARY, entry.library.read_bytes())
    _write(place / cache.ABOUT, json.dumps(about, indent=1).encode())
    return place


def _write(file: Path, content: bytes) -> None:
    """Write a file whole or not at all, for everybody to read and for nobody else to write, whatever the umask."""
    descriptor, name = tempfile.mkstemp(prefix=".part.", dir=file.parent)
    with open(descriptor, "wb") as part:
        part.write(content)
    os.chmod(name, 0o644)
    os.replace(name, file)
