"""Makes the table of PyTorch's stable C functions from releases of PyTorch, each with the first that had it.

    python -m tests.kit.ship.symbols TORCH … [--json FILE]

TORCH is the folder of an installed torch or a wheel of it; at least one of the oldest release, and the more the better:
a function counts from the oldest release that it was seen in. What only a torch with CUDA has is taken from those among
them that have it. A release that is read again replaces nothing: the table is made anew each time.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opwright.kit.ship import elf, stable

HEADERS = ("stable/c/*.h", "inductor/aoti_torch/c/*.h", "inductor/aoti_torch/generated/*.h")
LIBRARIES = ("libtorch_cpu", "libtorch_cuda")
DECLARED = re.compile(r"\b((?:aoti|torch)_\w+)\s*\(")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch", nargs="+", type=Path, help="folders of installed torches, or wheels")
    parser.add_argument("--json", type=Path, default=stable.TABLE, help="the file for the table")
    asked = parser.parse_args()
    found: dict[str, dict[str, set[str]]] = {}
    for source in asked.torch:
        with _unpacked(source) as torch:
            version = _version(torch)
            found[version] = {library: offered(torch, library) for library in LIBRARIES}
            print(version, {library: len(names) for library, names in found[version].items()})
    asked.json.write_text(json.dumps(table(found), indent=1) + "\n", encoding="utf-8")


def table(found: dict[str, dict[str, set[str]]]) -> dict[str, object]:
    """The table of what was found, by version and library."""
    versions = sorted(found, key=stable.release_of)
    symbols: dict[str, dict[str, list[str]]] = {}
    gone: dict[str, list[str]] = {}
    for library in LIBRARIES:
        having = [version for version in versions if found[version][library]]  # a CPU-only torch says nothing of CUDA
        known: set[str] = set()
        missed: set[str] = set()
        for version in having:
            release = ".".join(map(str, stable.release_of(version)))
            here = found[version][library]
            new, lost = sorted(here - known), sorted(known - here - missed)
            if new:
                symbols.setdefault(library, {}).setdefault(release, []).extend(new)
            if lost:
                gone.setdefault(release, []).extend(lost)
            known |= here
            missed |= {*lost}
    return {"torch": versions, "symbols": symbols, "gone": gone}


def offered(torch: Path, library: str) -> set[str]:
    """The C functions that PyTorch's headers declare and this library of it has."""
    file = torch / "lib" / f"{library}.so"
    return declared(torch) & {*elf.read(file).exported} if file.is_file() else set()


def declared(torch: Path) -> set[str]:
    headers = [h for pattern in HEADERS for h in (torch / "include" / "torch" / "csrc").glob(pattern)]
    return {name for header in headers for name in DECLARED.findall(header.read_text(encoding="utf-8"))}


def _version(torch: Path) -> str:
    text = (torch / "version.py").read_text(encoding="utf-8")
    return re.findall(r"__version__ = '([^'+]+)", text)[0]  # type: ignore[no-any-return]


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    """The folder of a torch; of a wheel, what is read here is unpacked for as long as it takes."""
    if source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory(dir=source.parent) as folder, zipfile.ZipFile(source) as wheel:
        for name in wheel.namelist():
            wanted = re.fullmatch(r"torch/(version\.py|include/torch/csrc/.*\.h|lib/(\w+)\.so)", name)
            if wanted and (wanted[2] is None or wanted[2] in LIBRARIES):
                wheel.extract(name, folder)
        yield Path(folder) / "torch"


if __name__ == "__main__":
    main()
