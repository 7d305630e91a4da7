"""What a built library binds, and whether that fits the operator's schema.

kernel.h writes the types of each kernel into the library, in the words of a schema. PyTorch hands a kernel 64 bits for
each argument, and a kernel of other types would misread them without a word.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opwright.kit.build.trouble import WrongKernel

if TYPE_CHECKING:
    from opwright.kit.op import Op
    from opwright.kit.spec.schema import Parameter

_RECORD = re.compile(rb"\x01opwright kernel\x01([^\0]*)\0+\x02([^\0]*)\0+\x03([^\0]*)\0")

IN_CPP = {
    "Tensor": "Tensor",
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "std::string",
    "ScalarType": "DType",
    "Device": "torch::stable::Device",
    "Layout": "torch::headeronly::Layout",
    "MemoryFormat": "torch::headeronly::MemoryFormat",
}
"""A schema's types as a kernel has them. A complex number and a generator have none."""
BY_REFERENCE = ("Tensor", "str")


@dataclass(frozen=True)
class Bound:
    """One OPWRIGHT_KERNEL: what it binds to what, and the function's types in the words of a schema."""

    op: str
    device: str
    function: str
    file: str
    line: str
    results: str
    taken: str
    """The parameters' types; an exclamation mark stands after those that the function may write to."""

    @property
    def parameters(self) -> str:
        """Their types alone."""
        return self.taken.replace("!", "")

    @property
    def written(self) -> list[int]:
        """The places of those that the function may write to."""
        return [i for i, word in enumerate(self.taken.split(",")) if word.endswith("!")]

    def place(self, folder: Path) -> str:
        """Where it stands: with its folder, as an editor opens it, where that is the given one."""
        found = folder / self.file
        return f"{found if found.is_file() else self.file}:{self.line}"


def read(library: Path) -> list[list[str]]:
    """The kernels that a library binds, as plain values to be kept beside it: without folders, which mean nothing on
    another machine."""
    found: dict[tuple[str, ...], None] = {}
    for bound, results, parameters in _RECORD.findall(library.read_bytes()):
        op, device, function, file, line = (part.decode(errors="replace") for part in bound.split(b"\1"))
        found[op, device, function, os.path.basename(file), line, results.decode(), parameters.decode()] = None
    return [list(row) for row in found]


def refuse_twice(name: str, kernels: list[Bound]) -> None:
    """Raise where two lines of a library bind the same operator on the same device: PyTorch would take the last."""
    seen: dict[tuple[str, str], Bound] = {}
    for each in kernels:
        first = seen.setdefault((each.op, each.device), each)
        if first is not each:
            lines = " and ".join(f"{b.file}:{b.line} (to {b.function})" for b in sorted((first, each), key=_place))
            raise WrongKernel(
                f"{name}: it binds {each.op} on {each.device.upper()} twice, in {lines}; keep one of them"
            )


def _place(bound: Bound) -> tuple[str, int]:
    return bound.file, int(bound.line)


def mismatch(op: Op[..., Any], bound: Bound, folder: Path) -> str | None:
    """Why a kernel cannot serve an operator: its types are not those of the schema. None where they are."""
    spelled, parameters = wanted(op)
    results = _words(spelled)
    # Several results may come in one list, as extensions return them.
    listed = bound.results == "Tensor[]" and len(results) > 1 and {*results} == {"Tensor"}
    if bound.parameters == parameters and (listed or bound.results == spelled):
        return None
    taken = ", ".join(_cpp(word) for word in _words(bound.parameters))
    needed = f"{_returned(results)} {bound.function}({', '.join(_declared(p) for p in op.signature.parameters)})"
    alien = next((p for p in op.signature.parameters if _parts(_hidden(p))[0] not in IN_CPP), None)
    returned = _returned(_words(bound.results))
    return (
        f"{op.name}: {bound.function} in {bound.place(folder)} takes ({taken}) and returns {returned}; "
        f"its schema {op.signature.schema(op.name)} needs "
        + (f"{alien.name}, which no kernel in C++ can take" if alien else f"`{needed}`")
    )


def wanted(op: Op[..., Any]) -> tuple[str, str]:
    """What a kernel of an operator must return and take, in the words of a schema."""
    results = [o.kind.schema.removesuffix("?") for o in op.signature.outputs]
    return ",".join(results), ",".join(_hidden(p) for p in op.signature.parameters)


def unbound(op: Op[..., Any], device: str, file: Path, bound: list[Bound]) -> str:
    """What to say of a library that binds no kernel to an operator."""
    others = dict.fromkeys(b.op if b.device == device else f"{b.op} on {b.device.upper()}" for b in bound)
    instead = f"it binds {', '.join(others)}; " if others else ""
    return (
        f"{op.name}: {file} binds no kernel to it; {instead}"
        f"add `OPWRIGHT_KERNEL({op.name}, {device.upper()}, your_function);`"
    )


def _hidden(p: Parameter) -> str:
    """A parameter's type as a built kernel's schema has it."""
    word, after = _parts(p.kind.schema)
    return {"Scalar": "float", "SymInt": "int"}.get(word, word) + after


def _parts(spelled: str) -> tuple[str, str]:
    """The type and what makes it a list, or optional: ("bool", "[]?")."""
    word = spelled.rstrip("[]?")
    return word, spelled[len(word) :]


def _words(spelled: str) -> list[str]:
    return spelled.split(",") if spelled else []


def _cpp(spelled: str) -> str:
    word, after = _parts(spelled)
    inside = IN_CPP.get(word, word)
    inside = f"std::vector<{inside}>" if "[]" in after else inside
    return f"std::optional<{inside}>" if "?" in after else inside


def _declared(p: Parameter) -> str:
    """A parameter as a kernel declares it."""
    spelled = _hidden(p)
    if (spelled, p.name) == ("bool[]?", "wanted"):
        return "const Wanted& wanted"
    if p.mutated and spelled == "Tensor":
        return f"Tensor& {p.name}"
    by_reference = spelled in BY_REFERENCE or _parts(spelled)[1]
    return f"const {_cpp(spelled)}& {p.name}" if by_reference else f"{_cpp(spelled)} {p.name}"


def _returned(results: list[str]) -> str:
    if len(results) == 1:
        return _cpp(results[0])
    return f"std::tuple<{', '.join(map(_cpp, results))}>" if results else "void"
