"""What `opwright new` copies."""

from __future__ import annotations

import keyword
import string
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"


def scaffold(name: str, path: Path, *, rows: bool = False, cuda: bool = False) -> list[Path]:
    """Write a new operator's folder `path/name`, elementwise or over rows, with a kernel for the GPU if asked, and give
    the files written.

    >>> import tempfile
    >>> [file.name for file in scaffold("swish", Path(tempfile.mkdtemp()))]
    ['README.md', 'cpu.cpp', 'op.py', 'test_swish.py']
    """
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot name an operator: it is a word of Python's own; choose another name")
    if not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise ValueError(f"{name!r} cannot name an operator; take letters, digits and _, for example my_op")
    if name in ("torch", "ow", "x", "beta", "eps", "make", "DOMAIN"):
        raise ValueError(f"{name!r} means something else in an operator's file; choose another name")
    if name.endswith("_"):
        raise ValueError(f"{name!r}: a name that ends in _ is that of an in-place form; ow.in_place makes it")
    folder = path / name
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another name or remove it first")
    folder.mkdir(parents=True)
    written = []
    files = ["cpu.cpp", "cuda.cu"] if cuda else ["cpu.cpp"]
    words = {
        "name": name,
        "folder": folder,
        "files": ", ".join(f'"{file}"' for file in files),
        "option": "eps=1e-5" if rows else "beta=2.0",
        "layout": ', layout="contiguous"' if cuda else "",
    }
    sources = [TEMPLATE / ("rows" if rows else "elementwise") / file for file in ("op.py", *files)]
    for source in sorted([*sources, *(TEMPLATE / "both").iterdir()], key=lambda file: file.name):
        target = folder / (f"test_{name}.py" if source.name == "test_op.py" else source.name)
        target.write_text(string.Template(source.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        written.append(target)
    return written
