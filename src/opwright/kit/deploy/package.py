"""Writes models with the operators that they call: `ow.package`."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from opwright.kit import private
from opwright.kit.build import own, shipped
from opwright.kit.build.library import Library
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import Unavailable
from opwright.kit.cpp import messages
from opwright.kit.deploy.loader import FOLDER, FORMAT, WEIGHTS
from opwright.kit.dispatch import registry, wire
from opwright.kit.op import Op

LIBSTDCXX_ITSELF = "_ZNSt6locale18_S_initialize_onceEv"
"""What libstdc++ alone defines, and nobody else calls."""


def package(
    program: Any, file: str | os.PathLike[str], *, compiled: bool = False, devices: Iterable[str] | None = None
) -> Path:
    """Write an exported model into a `.pt2` archive together with the libraries of the operators that it calls.

    Another process loads it with `ow.load_package`, or without opwright by the one file that
    `python -m opwright loader` prints; a program in C++ by `<opwright/package.h>`.

    Args:
        program: what torch.export.export gives, or an archive that torch.export.save or AOTInductor wrote
        file: the archive to write
        compiled: compile an exported program with AOTInductor
        devices: whose kernels go along, `"cpu"` and `"cuda"`; by default the CPU's, and the GPU's where there is one

    >>> import tempfile, torch, opwright as ow
    >>> class Model(torch.nn.Module):
    ...     def forward(self, x, w, h, c):
    ...         return ow.lltm_cell(x, w, None, h, c)[0]
    >>> inputs = torch.ones(1, 2), torch.ones(9, 5), torch.ones(1, 3), torch.ones(1, 3)
    >>> file = ow.package(torch.export.export(Model(), inputs), tempfile.mkdtemp() + "/model.pt2")
    >>> ow.load_package(file, trust=True).module()(*inputs).shape
    torch.Size([1, 3])
    """
    target = Path(file)
    wanted = {"cpu", *(["cuda"] if torch.cuda.is_available() else [])} if devices is None else {*devices}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / (target.stem + ".pt2")
        if isinstance(program, torch.export.ExportedProgram):
            operators = _called(program)
            if compiled:
                _refuse_values(program)
                private.compile_ahead(program, str(made))
            else:
                torch.export.save(program, made)
        else:
            shutil.copyfile(program, made)
            _refuse_second_libstdcxx(made, program)
            operators = [*_named(made)]
        if operators:
            _add(made, operators, wanted)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, target)
    return target


def _called(program: torch.export.ExportedProgram) -> list[Op[..., Any]]:
    """The operators of ours that a program calls."""
    return [*dict.fromkeys(op for op, _ in _calls(program))]


def _calls(program: torch.export.ExportedProgram) -> Iterator[tuple[Op[..., Any], torch.fx.Node]]:
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            name = getattr(getattr(node.target, "_schema", None), "name", None)
            op = None if name is None else registry.find(name)
            if op is not None:
                yield op, node


def _refuse_values(program: torch.export.ExportedProgram) -> None:
    """What PyTorch writes into a compiled model, and its own loader does not take or does not give back."""
    for op, node in _calls(program):
        for at, parameter in enumerate(op.overload._schema.arguments):
            given = at < len(node.args) or parameter.name in node.kwargs
            if not given and parameter.default_value is not None and str(parameter.real_type) == "ScalarType":
                raise ValueError(
                    f"{op.name}: {parameter.name} is left at its default, which a compiled model cannot hold; "
                    f"declare it as `{parameter.name}: torch.dtype | None = None`, or leave out compiled=True"
                )
            value = node.args[at] if at < len(node.args) else node.kwargs.get(parameter.name, parameter.default_value)
            lost = _lost(value, re.search("Tensor|int", str(parameter.real_type)) is not None)
            if lost is not None:
                raise ValueError(
                    f"{op.name}: {parameter.name} is {lost}, which a compiled model cannot hold; "
                    "leave out compiled=True"
                )


def _lost(value: Any, at_run_time: bool) -> str | None:
    """What of a value a compiled model loses; None: nothing. Tensors and sizes are handed over at run time, and where a
    list has none of them the operator gets None."""
    if isinstance(value, (list, tuple)):
        if at_run_time and not value:
            return "an empty list"
        return next(filter(None, (_lost(each, at_run_time) for each in value)), None)
    unwritten = isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if unwritten else None


def _refuse_second_libstdcxx(archive: Path, called: str | os.PathLike[str]) -> None:
    """A compiled model that gives a libstdc++ of its own away breaks the process that loads it."""
    from opwright.kit.ship import elf

    with zipfile.ZipFile(archive) as opened, tempfile.TemporaryDirectory() as folder:
        for name in (each for each in opened.namelist() if each.endswith(".so")):
            if LIBSTDCXX_ITSELF in elf.read(Path(opened.extract(name, folder))).exported:
                raise ValueError(
                    f"{os.fspath(called)}: its compiled model holds libstdc++, since the compiler has it as an archive "
                    "alone, and gives it away, which breaks the process that loads it; let ow.package compile "
                    "the exported program (compiled=True), or pass aoti_compile_and_package "
                    f"inductor_configs={{'aot_inductor.custom_op_libs': [{private.KEEPS_ARCHIVES!r}]}}"
                )


def _named(archive: Path) -> Iterator[Op[..., Any]]:
    """The operators of ours whose names an archive holds."""
    with zipfile.ZipFile(archive) as opened:
        texts = [opened.read(name) for name in opened.namelist() if name.endswith((".json", ".cpp"))]
    for space, name in {found for text in texts for found in re.findall(rb"torch\.ops\.(\w+)\.(\w+)", text)}:
        called = f"{space.decode()}::{name.decode()}"
        if not private.schemas_of(called):
            raise ValueError(f"the model calls {called}, which is not in this process; import what defines it first")
    for op in registry.operators():
        spelled = (f"torch.ops.{op.namespace}.{op.name}.", f'{op.qualname}"', f"{op.qualname}.")
        if any(word.encode() in text for word in spelled for text in texts):
            yield op


def _add(archive: Path, operators: list[Op[..., Any]], devices: set[str]) -> None:
    """Put what a process without Python needs of operators into an archive."""
    files: dict[str, bytes] = {}
    rows: list[tuple[str, ...]] = [
        ("format", FORMAT),
        ("wire", hashlib.sha256(wire.describe().encode()).hexdigest()),
    ]
    keys, libraries, _ = gather(operators, devices)
    for library, name in zip(keys, libraries, strict=True):
        digest = _put(files, f"{name}.so", libraries[name])
        rows.append(("library", f"{name}.so", digest, library.device, messages.bound(operators, library, keys)))
    lost = [op.name for op in operators if op not in messages.served(operators, keys)]
    if lost:
        raise ValueError(
            f"{', '.join(lost)}: no kernel for {' or '.join(sorted(devices))}, and the model would have nothing to call"
        )
    for version, content in natives():
        name = f"native_{version}.so"
        rows.append(("native", name, _put(files, name, content), version))
    with zipfile.ZipFile(archive) as opened:
        members = [name for name in opened.namelist() if not name.partition("/")[2].startswith(WEIGHTS)]
        rows += [("member", n.partition("/")[2], hashlib.sha256(opened.read(n)).hexdigest()) for n in members]
    rows += [("operator", op.qualname, str(op.overload._schema)) for op in operators]
    files["operators"] = messages.text(operators, keys).encode()
    files["manifest"] = "".join("\t".join(row) + "\n" for row in rows).encode()
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as opened:
        top = opened.namelist()[0].partition("/")[0]
        for name, content in files.items():
            opened.writestr(f"{top}/{FOLDER}{name}", content)


def gather(
    operators: Iterable[Op[..., Any]], devices: set[str]
) -> tuple[dict[Library, str], dict[str, bytes], tuple[int, ...] | None]:
    """The libraries of operators for these devices: by which key each binds its kernels, their content by name in the
    same order, and the CUDA that they were built with."""
    keys: dict[Library, str] = {}
    contents: dict[str, bytes] = {}
    cuda: tuple[int, ...] | None = None
    for rung in dict.fromkeys(rung for op in operators for rung in op.ladder):
        for kernel in rung.kernels:
            if kernel.library is None or kernel.device not in devices or kernel.library in keys:
                continue
            plan: Plan = kernel.library.plan()
            if plan.options.abi != "stable":
                raise Unavailable(
                    f"{rung.name}: a kernel with abi='aten' runs with one torch alone, and cannot go along"
                )
            entry = kernel.library.find(plan)
            keys[kernel.library] = str(entry.about["key"])[:16]
            contents[f"{rung.name}_{kernel.device}_{keys[kernel.library]}"] = entry.library.read_bytes()
            cuda = tuple(entry.about["cuda"]) if entry.about.get("cuda") else cuda
    return keys, contents, cuda


def _put(files: dict[str, bytes], name: str, content: bytes) -> str:
    files[name] = content
    return hashlib.sha256(content).hexdigest()


def natives() -> Iterator[tuple[str, bytes]]:
    """opwright's own C++ for the torch at hand, and for those that this opwright was shipped for."""
    mine = shipped.public_version()
    entry = own.built("native", own.native)
    if entry is None:
        raise Unavailable("opwright's own C++ is not built; run `opwright build`, the model needs it")
    yield mine, Path(entry.to_load()).read_bytes()
    for version, file in shipped.own_files("native", own.content()).items():
        if version != mine:
            yield version, file.read_bytes()
