"""What `opwright new` copies."""

from __future__ import annotations

import keyword
import re
import string
import sys
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"
RESERVED = ("opwright", "torch", "aten", "prim", "prims", "user")
"""What no package can be called: others' names, and namespaces of operators that are nobody's or PyTorch's."""
TAKEN = ("torch", "ow", "x", "beta", "eps", "make", "DOMAIN")
"""What means something else in an operator's file."""


def scaffold(name: str, path: Path, *, rows: bool = False, cuda: bool = False) -> list[Path]:
    """Write a new operator's folder `path/name`, elementwise or over rows, with a kernel for the GPU if asked, and give
    the files written.

    >>> import tempfile
    >>> [file.name for file in scaffold("swish", Path(tempfile.mkdtemp()))]
    ['README.md', 'cpu.cpp', 'op.py', 'test_swish.py']
    """
    folder = _new_folder(name, path)
    sources = [*_operator(rows, cuda), *(TEMPLATE / "both").iterdir()]
    words = _words(name, folder, rows, cuda)
    written = []
    for source in sorted(sources, key=lambda file: file.name):
        target = folder / (f"test_{name}.py" if source.name == "test_op.py" else source.name)
        written.append(_write(source, target, words))
    return written


def scaffold_package(name: str, place: Path, *, rows: bool = False, cuda: bool = False) -> list[Path]:
    """Write a new operator into the package whose project is the folder `place`, which is made if need be; the files
    written.

    >>> import tempfile
    >>> project = Path(tempfile.mkdtemp()) / "my_ops"
    >>> [file.relative_to(project).as_posix() for file in scaffold_package("swish", project)][:3]
    ['src/my_ops/swish/op.py', 'src/my_ops/swish/cpu.cpp', 'tests/test_swish.py']
    """
    package = place.resolve().name
    found = sorted(place.glob("src/*/__init__.py")) if (place / "pyproject.toml").is_file() else []
    if found:
        package = found[0].parent.name
    elif place.exists() and any(place.iterdir()):
        raise FileExistsError(f"{place} exists already and is no project with a package in src; choose another name")
    _refuse_package(package)
    if name == package:
        raise ValueError(f"{name!r} is the package's name; choose another one for the operator")
    inside = place / "src" / package
    folder = _new_folder(name, inside)
    words = _words(name, folder, rows, cuda) | {"package": package, "version": "0.1.0"}
    written = [_write(source, folder / source.name, words) for source in _operator(rows, cuda)]
    (place / "tests").mkdir(exist_ok=True)
    written.append(_write(TEMPLATE / "package" / "test_op.py", place / "tests" / f"test_{name}.py", words))
    with (inside / "__init__.py").open("a", encoding="utf-8") as init:
        init.write(f"from .{name}.op import {name} as {name}\n")
    for file in ("pyproject.toml", "README.md"):
        if not (place / file).exists():
            written.append(_write(TEMPLATE / "package" / file, place / file, words))
    return [*written, inside / "__init__.py"]


def _new_folder(name: str, path: Path) -> Path:
    """The folder of a new operator, made."""
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot name an operator: it is a word of Python's own; choose another name")
    if name.startswith("_") and name.isidentifier():
        raise ValueError(f"{name!r} cannot name an operator: a name must begin with a letter, for example my_op")
    if not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise ValueError(f"{name!r} cannot name an operator; take letters, digits and _, for example my_op")
    if name in TAKEN:
        raise ValueError(f"{name!r} means something else in an operator's file; choose another name")
    if name.endswith("_"):
        raise ValueError(f"{name!r}: a name that ends in _ is that of an in-place form; ow.in_place makes it")
    folder = path / name
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another name or remove it first")
    folder.mkdir(parents=True)
    return folder


def _refuse_package(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot name a package; take letters, digits and _, for example my_ops")
    if name in sys.stdlib_module_names or name in RESERVED:
        raise ValueError(f"{name!r} is another package's name; choose one of your own")


def _operator(rows: bool, cuda: bool) -> list[Path]:
    files = ("op.py", "cpu.cpp", "cuda.cu") if cuda else ("op.py", "cpu.cpp")
    return [TEMPLATE / ("rows" if rows else "elementwise") / file for file in files]


def _words(name: str, folder: Path, rows: bool, cuda: bool) -> dict[str, str]:
    files = ["cpu.cpp", "cuda.cu"] if cuda else ["cpu.cpp"]
    return {
        "name": name,
        "folder": str(folder),
        "files": ", ".join(f'"{file}"' for file in files),
        "option": "eps=1e-5" if rows else "beta=2.0",
        "layout": ', layout="contiguous"' if cuda else "",
    }


def _write(source: Path, target: Path, words: dict[str, str]) -> Path:
    target.write_text(string.Template(source.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
    return target
