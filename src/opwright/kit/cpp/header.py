"""Writes the header by which a program in C++ calls operators: a typed function for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opwright.kit.op import Op
from opwright.kit.spec.schema import EMPTY, Parameter, Signature

_TYPES = {
    "Tensor": "at::Tensor",
    "Scalar": "at::Scalar",
    "SymInt": "int64_t",
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "complex": "c10::complex<double>",
    "str": "std::string",
    "ScalarType": "at::ScalarType",
    "Device": "at::Device",
    "Layout": "at::Layout",
    "MemoryFormat": "at::MemoryFormat",
    "Generator": "at::Generator",
}
_PLAIN = ("int64_t", "double", "bool", "at::ScalarType", "at::Device", "at::Layout", "at::MemoryFormat")
"""What is passed by value."""
_TAKEN = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const constexpr
char8_t char16_t char32_t co_await co_return co_yield const_cast consteval constinit
continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected
public register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch
template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
while xor xor_eq at c10 op_ options_ opwright std torch EOF NULL NAN INFINITY assert errno linux unix math_errhandling
"""
_KEYWORDS = frozenset(_TAKEN.split())
"""What C++ takes for something else, and what the functions call things of their own."""


def header(target: str, operators: Sequence[Op[..., Any]]) -> str:
    """The header of a library's operators, in the namespaces that `torch.ops` has them in."""
    spaces: dict[str, list[str]] = {}
    for op in operators:
        spaces.setdefault(op.namespace, []).append(_function(target, op))
    parts = [
        f"// The operators of {target}, as functions. Written by opwright; changes are lost.",
        "#pragma once",
        "",
        "#include <opwright/operators.h>",
        "",
        "// What stands in the way of the library's operators; null: nothing. Whoever calls one needs the library.",
        f'extern "C" const char* opwright_trouble_of_{target}();',
    ]
    for space, functions in spaces.items():
        name = space if space == "opwright" else cpp_name(space)
        parts += ["", f"namespace {name} {{", "", "\n\n".join(functions), "", f"}}  // namespace {name}"]
    return "\n".join(parts) + "\n"


def _function(target: str, op: Op[..., Any]) -> str:
    signature = op.signature
    named = [p for p in signature.parameters if p.keyword_only]
    name = cpp_name(op.name)
    lines = []
    if named:
        lines.append(f"struct {name}_options {{")
        lines += [f"    {_type(p)} {cpp_name(p.name)}{_default(p)};" for p in named]
        lines += ["};", ""]
    raw = _raw(signature)
    result = "at::Tensor&" if signature.returns_input else raw
    fields = [o.name for o in signature.outputs]
    if len(fields) > 1 and all(fields):
        result = f"{name}_result"
        lines.append(f"struct {result} {{")
        lines += [
            f"    {_type_of(o.kind.schema.removesuffix('?'))} {cpp_name(str(o.name))};" for o in signature.outputs
        ]
        lines += ["};", ""]
    lines += [f"// {line}".rstrip().rstrip("\\") for line in _first_lines(op)]
    declared = [f"{_passed(p)} {cpp_name(p.name)}{_default(p)}" for p in signature.parameters if p not in named]
    if named:
        declared.append(
            f"const {name}_options& options_" + (" = {}" if all(p.default is not EMPTY for p in named) else "")
        )
    given = [f"options_.{cpp_name(p.name)}" if p in named else cpp_name(p.name) for p in signature.parameters]
    lines.append(f"inline {result} {name}({', '.join(declared)}) {{")
    lines.append(f'    static const opwright::Function<{raw}> op_("{op.qualname}", opwright_trouble_of_{target}());')
    call = f"op_({', '.join(given)})"
    if signature.returns_input:
        lines += [f"    {call};", f"    return {cpp_name(signature.returns_input)};"]
    elif result != raw:
        lines.append(f"    return std::make_from_tuple<{result}>({call});")
    else:
        lines.append(f"    return {call};")
    # Another library of the same program may have the operator as well.
    once = f"OPWRIGHT_FUNCTION_{op.namespace}_{op.name}"
    return "\n".join([f"#ifndef {once}", f"#define {once}", *lines, "}", "#endif"])


def _first_lines(op: Op[..., Any]) -> list[str]:
    text = (op.__doc__ or op.schema).strip()
    return text.split("\n\n")[0].splitlines()


def _raw(signature: Signature) -> str:
    """What the dispatcher gives."""
    if signature.returns_input or not signature.outputs:
        return "void"
    types = [_type_of(o.kind.schema.removesuffix("?")) for o in signature.outputs]
    return types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>"


def _type_of(schema: str) -> str:
    inner = schema.rstrip("[]?")
    kind = _TYPES[inner]
    if schema.endswith("?[]"):
        return f"c10::List<std::optional<{kind}>>"
    if "[]" in schema:
        kind = f"std::vector<{kind}>" if inner != "bool" else "c10::List<bool>"
    return f"std::optional<{kind}>" if schema.endswith("?") else kind


def _type(p: Parameter) -> str:
    return _type_of(p.kind.schema)


def _passed(p: Parameter) -> str:
    """A parameter's type as functions take it."""
    kind = _type(p)
    if p.mutated and kind == "at::Tensor":
        return "at::Tensor&"
    return kind if kind in _PLAIN else f"const {kind}&"


def _default(p: Parameter) -> str:
    return "" if p.default is EMPTY else f" = {_value(p)}"


def _value(p: Parameter) -> str:
    value = p.kind.encode(p.default) if p.kind.encode else p.default
    return _spell(value)


def _spell(value: Any) -> str:
    if value is None:
        return "std::nullopt"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, float):
        return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(str(value), repr(value))
    if isinstance(value, complex):
        return f"{{{_spell(value.real)}, {_spell(value.imag)}}}"
    if isinstance(value, (list, tuple)):
        return f"{{{', '.join(map(_spell, value))}}}"
    kinds = {"dtype": "at::ScalarType::", "layout": "at::Layout::", "memory_format": "at::MemoryFormat::"}
    kind = type(value).__name__
    if kind == "device":
        return f'at::Device("{value}")'
    if kind in kinds:
        word = str(value).removeprefix("torch.")
        return kinds[kind] + (_CPP_DTYPES.get(word, word) if kind == "dtype" else _camel(word))
    return str(value)


_CPP_DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
    "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble", "complex32": "ComplexHalf", "uint16": "UInt16", "uint32": "UInt32",
    "uint64": "UInt64",
}  # fmt: skip


def literal(text: str) -> str:
    """A text as C++ reads it.

    >>> print(literal("a\\n"))
    "a\\012"
    """
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'


def _camel(word: str) -> str:
    known = {"channels_last_3d": "ChannelsLast3d", "sparse_coo": "Sparse"}
    return known.get(word, "".join(part.capitalize() for part in word.split("_")))


def cpp_name(name: str) -> str:
    """A name of Python's as C++ takes it.

    >>> cpp_name("weight"), cpp_name("template")
    ('weight', 'template_')
    """
    return f"{name}_" if name in _KEYWORDS else name
