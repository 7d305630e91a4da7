"""Exported programs and the operators in them.

A program on disk knows an operator by its name and its arguments by theirs, and PyTorch fills in what it does not find:
an argument that got another name is quietly left at its default. So a call in an exported program stands between two
notes of what the operator was, which are held against what it is now wherever the program is run, compiled or
decomposed. Decompositions, AOTInductor's too, drop the notes once they hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.values import tensors

_library = torch.library.Library("opwright_exported", "FRAGMENT")
_there = bool(private.schemas_of("opwright_exported::schema"))
"""Whether a library for C++ has brought the notes along (native/exported.cpp): it holds them then."""
if not _there:
    _library.define("schema(str operator, str schema) -> ()", tags=torch.Tag.pt2_compliant_tag)
    _library.define(
        "dtypes(Tensor[] given, Tensor[] results, str operator, str dtypes) -> ()", tags=torch.Tag.pt2_compliant_tag
    )


def note_schema(operator: str, schema: str) -> None:
    """Write down, before a call in a program that is being exported, what is called."""
    torch.ops.opwright_exported.schema(operator, schema)


def note_dtypes(given: tuple[Any, ...], out: Any, operator: str) -> None:
    """Write down, behind the call, what it took and gave."""
    taken, found = tensors(given), tensors(out)
    torch.ops.opwright_exported.dtypes(taken, found, operator, _dtypes(taken, found))


def _hold_schema(operator: str, schema: str) -> None:
    namespace, name = operator.split("::")
    now = str(getattr(getattr(torch.ops, namespace), name).default._schema)
    if now != schema:
        _refuse(operator, schema, now)


def _hold_dtypes(given: list[Tensor], results: list[Tensor], operator: str, dtypes: str) -> None:
    took, _, gave = dtypes.partition(" -> ")
    takes, _, gives = _dtypes(given, results).partition(" -> ")
    if takes == took and gives != gave and not any(torch.is_autocast_enabled(t.device.type) for t in given):
        _refuse(operator, f"results of {gave}", f"of {gives}")


def _refuse(operator: str, then: str, now: str) -> None:
    raise RuntimeError(
        f"{operator} is not what it was when this program was exported: {then} then, {now} now; "
        f"export the program again, or load it with the package that it was exported with"
    )


def _dtypes(given: list[Tensor], results: list[Tensor]) -> str:
    def spell(values: list[Tensor]) -> str:
        return ", ".join([str(t.dtype).removeprefix("torch.") for t in values])

    return f"{spell(given)} -> {spell(results)}"


for _name, _hold in {"schema": _hold_schema, "dtypes": _hold_dtypes}.items():
    if not _there:
        _library.impl(_name, _hold, "CompositeImplicitAutograd")
    torch.fx.node.has_side_effect(getattr(torch.ops.opwright_exported, _name).default)
