"""Writes operators in the layout of the `kernels` package, by which models fetch them from a hub: `opwright hub`.

A variant is a folder for one torch and one kind of device, with a module that imports the standard library and torch
alone, the libraries, and metadata with the digest of every file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import platform
import re
import shutil
import string
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from opwright.kit.cpp import messages
from opwright.kit.deploy.package import gather, natives
from opwright.kit.op import Op
from opwright.kit.spec.schema import EMPTY, Parameter

MODULE = string.Template('''"""$title

Operators with kernels for $device, torch $torch. Written by opwright; a call outside of a kernel's domain is an error
that names the argument.
"""

from pathlib import Path as _Path

import torch as _torch

_here = _Path(__file__).parent
if not _torch._C._jit_get_schemas_for_operator("opwright_native::load"):
    _version = _torch.__version__.partition("+")[0]
    if not (_here / f"native_{_version}.so").is_file():
        raise ImportError(f"$name: it was written for torch $torch, and this is torch {_version}")
    _torch.ops.load_library(str(_here / f"native_{_version}.so"))
for _library, _device, _bound in $libraries:
    _known = _torch._C._dispatch_has_kernel(_bound)
    if not _known or not _torch._C._dispatch_has_kernel_for_dispatch_key(_bound, _device):
        _torch.ops.load_library(str(_here / _library))
_trouble = _torch.ops.opwright_native.load((_here / "operators.txt").read_bytes().decode())
if _trouble:
    raise ImportError(_trouble)

__all__ = $names
$functions''')


def write(
    operators: Sequence[Op[..., Any]], to: Path, *, name: str, version: int, license: str, devices: Sequence[str]
) -> list[Path]:
    """Write a repository of operators; its variants.

    Args:
        operators: those that go in.
        to: the repository's folder; variants go into its `build`.
        name: what the repository is called: small letters, digits and `-`.
        version: the version of what its users see, counted up when that breaks.
        license: as SPDX spells it.
        devices: `"cpu"`, `"cuda"`.
    """
    if not re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", name):
        raise ValueError(f"a repository is called by small letters, digits and -, such as my-ops, got {name!r}")
    variants = []
    for device in devices:
        keys, libraries, release = gather(operators, {device})
        served = messages.served(operators, keys)
        public = [op for op in operators if op in served]
        if not public:
            raise ValueError(f"no operator has a kernel for {device}, and there would be nothing to call")
        backend = device if release is None else f"cu{release[0]}{release[1]}"
        bound = [
            (f"{file}.so", device.upper(), messages.bound(operators, library, keys))
            for library, file in zip(keys, libraries, strict=True)
        ]
        for release_line, owned in _by_release(natives()).items():
            place = to / "build" / f"torch{release_line}-cxx11-{backend}-{platform.machine()}-{sys.platform}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            files = {f"{file}.so": content for file, content in libraries.items()}
            files |= {f"native_{torch}.so": content for torch, content in owned.items()}
            files["operators.txt"] = messages.text(operators, keys).encode()
            files["__init__.py"] = _module(name, device, ", ".join(owned), public, bound).encode()
            for file, content in files.items():
                (place / file).write_bytes(content)
            _write_metadata(place, files, name, version, license, device)
            variants.append(place)
    return variants


def _by_release(natives: Iterable[tuple[str, bytes]]) -> dict[str, dict[str, bytes]]:
    """opwright's own C++ by the release of torch that a variant is for, such as 213, then by its exact version."""
    found: dict[str, dict[str, bytes]] = {}
    for torch, content in natives:
        major, minor, *_ = torch.split(".")
        found.setdefault(f"{major}{minor}", {})[torch] = content
    return found


def _module(
    name: str,
    device: str,
    torch: str,
    operators: Sequence[Op[..., Any]],
    libraries: list[tuple[str, str, str]],
) -> str:
    return MODULE.substitute(
        title=f"{name}: {', '.join(op.name for op in operators)}.",
        name=name,
        device=device,
        torch=torch,
        libraries=repr(tuple(libraries)),
        names=repr([op.name for op in operators]),
        functions="".join(map(_function, operators)),
    )


def _function(op: Op[..., Any]) -> str:
    """A function with the operator's own parameters."""
    pieces, given, starred = [], [], False
    for p in op.signature.parameters:
        if p.keyword_only and not starred:
            pieces.append("*")
            starred = True
        pieces.append(p.name if p.default is EMPTY else f"{p.name}={_default(p)}")
        given.append(f"{p.name}={p.name}" if p.keyword_only else p.name)
    text = (op.__doc__ or op.schema).strip()
    call = f"_torch.ops.{op.namespace}.{op.name}.default({', '.join(given)})"
    return f"\n\ndef {op.name}({', '.join(pieces)}):\n    {text!r}\n    return {call}\n"


def _default(p: Parameter) -> str:
    value = p.kind.encode(p.default) if p.kind.encode else p.default
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return f"_{value}" if str(value).startswith("torch.") else repr(value)


def _write_metadata(place: Path, files: dict[str, bytes], name: str, version: int, license: str, device: str) -> None:
    digests = {f: base64.b64encode(hashlib.sha256(content).digest()).decode() for f, content in sorted(files.items())}
    unique = hashlib.sha256("".join(digests.values()).encode()).hexdigest()[:12]
    about = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_{device}_{unique}",
        "version": version,
        "license": license,
        "python-depends": [],
        "backend": {"type": device},
        "digest": {"algorithm": "sha256", "files": digests},
    }
    (place / "metadata.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
