"""The Python function behind an operator's call, written for its signature.

Binding, defaults, checks and conversions run on every call, so they are generated once as straight-line code: a
loop over parameters would cost more than a small operator. Names of the generator's own begin with `ow__`, which
parameters may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.build.trouble import BuildError
from opwright.kit.dispatch import exported
from opwright.kit.dispatch.untraced import untraced
from opwright.kit.spec import probe
from opwright.kit.spec.kinds import FAST_NAMES
from opwright.kit.spec.schema import EMPTY, Parameter, Signature
from opwright.kit.spec.values import tensors

FILE = "<opwright call of {}>"
"""The file name of generated code: by it an error finds the operator it arose in."""


def direct(state: probe.State) -> Callable[..., Any]:
    """A function that checks its arguments, runs the reference and checks what comes out."""
    name, signature, reference, gradient = state.name, state.signature, state.reference, state.gradient
    lines, names = _header(signature, name, checked=signature.parameters)
    arguments = []
    for p in signature.parameters:
        value = p.name
        if p.kind.is_tensor and not p.differentiable:
            names["ow__detach"] = _detach
            value = f"ow__detach({p.name})"
        arguments.append(f"{p.name}={value}" if p.keyword_only else value)
    given = ", ".join(arguments)
    names.update(ow__reference=reference, ow__state=state, ow__first=untraced(state.run))
    names.update(ow__is_compiling=torch.compiler.is_compiling)
    names.update(ow__outputs=lambda out: read_outputs(out, name, signature))
    lines += [
        "    if ow__is_compiling():",  # first: a graph must not depend on whether the probe has run
        f"        ow__out = ow__reference({given})",
        "    elif ow__state.fresh:",
        f"        ow__out = ow__first({given})",
        "    else:",
        f"        ow__out = ow__reference({given})",
    ]
    written = signature.returns_input
    if written:
        names["ow__not_written"] = state.refuse_result
        lines.append(f"    if ow__out is not None and ow__out is not {written}: ow__not_written(ow__out)")
        lines.append(f"    return {written}")
        return _compile(name, lines, names)
    if not gradient:
        inputs = [p.name for p in signature.parameters if p.kind.is_tensor]
        names.update(ow__refuse_alias=state.refuse_alias, ow__suspicious=_suspicious)
        if signature.single and signature.outputs[0].kind.schema == "Tensor":
            shared = " or ".join(["ow__out._is_view()", *(f"ow__out is {n}" for n in inputs)])
            shared = f"isinstance(ow__out, ow__Tensor) and ({shared})"
        else:
            shared = f"ow__suspicious(ow__out, ({''.join(f'{n}, ' for n in inputs)}))"
        lines.append(f"        if {shared}: ow__refuse_alias(")
        lines.append(f"            ow__out, {{{', '.join(f'{n!r}: {n}' for n in inputs)}}})")
    lines.append(f"    return ow__out if {_fast_output(signature)} else ow__outputs(ow__out)")
    return _compile(name, lines, names)


def _suspicious(out: Any, given: tuple[Any, ...]) -> bool:
    """Whether one of several results may share memory with an argument or with another."""
    found, known = tensors(out), tensors(given)
    return any(t._is_view() or any(t is g for g in known) for t in found) or len({*map(id, found)}) < len(found)


def dispatched(
    name: str,
    signature: Signature,
    overload: Any,
    inline: Callable[..., Any],
    devices: frozenset[str] | None,
    formula: bool,
) -> Callable[..., Any]:
    """A function that goes through the dispatcher, which checks tensors itself; numbers are checked here, since
    the dispatcher would quietly take a tensor for a number and drop its gradient. Graphs for devices other than
    `devices` (None: every device is meant) hold what `inline` does instead, be it with a formula behind it."""
    lines, names = _header(signature, name, checked=[p for p in signature.parameters if not p.kind.is_tensor])
    arguments = []
    for p in signature.parameters:
        value = p.name
        if p.kind.encode:
            names[f"ow__encode_{p.name}"] = p.kind.encode
            value = f"ow__encode_{p.name}({p.name})"
        arguments.append(f"{p.name}={value}" if p.keyword_only else value)
    given = ", ".join(arguments)
    tensors = [p for p in signature.parameters if p.kind.is_tensor]

    wide = [p for p in signature.parameters if p.kind.schema.rstrip("[]?") in ("SymInt", "Scalar")]

    def refuse(*values: Any) -> None:
        for p, value in zip([*tensors, *wide], values, strict=True):
            if p.kind.is_tensor:
                convert(name, p, value)
            else:
                _refuse_wide(name, p, value)

    names.update(ow__overload=overload, ow__op=overload._op, ow__is_compiling=torch.compiler.is_compiling)
    names.update(ow__refuse=refuse, ow__make=signature.container, ow__BuildError=BuildError)
    qualname, schema = overload._schema.name, str(overload._schema)
    names.update(ow__is_exporting=torch.compiler.is_exporting, ow__transformed=private.transforms_are_active)
    names.update(ow__note_schema=lambda: exported.note_schema(qualname, schema))
    names.update(ow__note_dtypes=lambda given, out: exported.note_dtypes(given, out, qualname))
    lines.append("    if ow__is_compiling():")
    first = next((p.name for p in signature.parameters if p.kind.schema == "Tensor"), None)
    if devices is not None and (first is not None or not devices):
        names.update(ow__inline=inline, ow__devices=devices)
        plain = ", ".join(f"{p.name}={p.name}" if p.keyword_only else p.name for p in signature.parameters)
        elsewhere = [f"{first}.device.type not in ow__devices"] if devices else []
        if formula:  # which Dynamo forgets inside torch.func's transforms: there it holds the operator
            elsewhere.append("not ow__transformed()")
        lines.append(f"        if {' and '.join(elsewhere) or True}: return ow__inline({plain})")
    given_tensors = "".join(f"{p.name}, " for p in tensors)
    lines += [
        "        if ow__is_exporting(): ow__note_schema()",
        f"        ow__out = ow__overload({given})",
        # A note that takes tensors has no batching rule.
        f"        if ow__is_exporting() and not ow__transformed(): ow__note_dtypes(({given_tensors}), ow__out)",
        "    else:",
        "        try:",
        f"            ow__out = ow__op({given})",
        "        except (RuntimeError, TypeError, OverflowError) as ow__error:",
        f"            ow__refuse({', '.join(p.name for p in [*tensors, *wide])})",
        # What the compiler says is about a file of the author's, not about the way there.
        "            if isinstance(ow__error, ow__BuildError): raise ow__error.with_traceback(None) from None",
        "            raise",
    ]
    bare = len(signature.outputs) == 1
    if signature.returns_input:
        lines.append(f"    return {signature.returns_input}")
    elif signature.container:
        lines.append("    return ow__make((ow__out,))" if bare else "    return ow__make(ow__out)")
    else:
        lines.append("    return (ow__out,)" if bare and not signature.single else "    return ow__out")
    return _compile(name, lines, names)


def convert(name: str, parameter: Parameter, value: Any) -> Any:
    """The value as the parameter's kind wants it, or TypeError in the operator's words."""
    if value is None and parameter.kind.is_optional:
        return None
    try:
        return parameter.kind.convert(value)
    except (TypeError, ValueError, OverflowError):
        hint = ""
        if isinstance(value, Tensor) and not parameter.kind.is_tensor:
            hint = " (a number takes no gradient: use .item())"
        wanted = f"{parameter.name} must be {parameter.kind.says}"
        raise TypeError(f"{name}: {wanted}, got {describe(value)}{hint}") from None


def _refuse_wide(name: str, parameter: Parameter, value: Any) -> None:
    """Raise for a whole number that the dispatcher cannot carry."""
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, int) and not -(2**63) <= each < 2**63:
            raise ValueError(f"{name}: {parameter.name} must lie in -2**63 … 2**63 - 1, got {each}") from None


def describe(value: Any) -> str:
    """A value in an error message: what it is, and its value where that is short.

    >>> describe(3.0), describe([1, "a"]), describe(None)
    ('float 3.0', 'list of int, str', 'None')
    """
    if isinstance(value, (bool, int, float, complex, str)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {', '.join(sorted({type(v).__name__ for v in value})) or 'nothing'}"
    return "None" if value is None else type(value).__name__


def read_outputs(out: Any, name: str, signature: Signature) -> Any:
    """What the reference returned, in the form that its annotation promises, or TypeError."""
    outputs = signature.outputs
    if not outputs:
        if out is not None:
            raise TypeError(f"{name}: the reference returned {describe(out)}, its annotation promises None")
        return None
    values = (out,) if signature.single else out
    if not isinstance(values, (tuple, list)) or len(values) != len(outputs):
        raise TypeError(
            f"{name}: the reference returned {describe(out)}, its annotation promises {len(outputs)} results; "
            f"let every path return the same"
        )
    read: list[Any] = []
    for i, (output, value) in enumerate(zip(outputs, values, strict=True)):
        if value is None and output.kind.is_optional:
            read.append(None)
            continue
        try:
            value = output.kind.convert(value)
        except TypeError:
            which = "" if len(outputs) == 1 else f" as result {output.name or i}"
            raise TypeError(
                f"{name}: the reference returned {describe(value)}{which}, its annotation promises "
                f"{output.kind.says}; let every path return the same"
            ) from None
        if not output.differentiable and value is not None:
            value = _detach(value)
        read.append(value)
    if signature.single:
        return read[0]
    return signature.container(read) if signature.container else tuple(read)


def _detach(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_detach(v) for v in value]
    return value if value is None else value.detach()


def _fast_output(signature: Signature) -> str:
    """An expression that is true when what the reference returned can be passed on as it is."""
    outputs = signature.outputs
    if signature.container or any(o.kind.schema != "Tensor" or not o.differentiable for o in outputs):
        return "False"
    if signature.single:
        return "isinstance(ow__out, ow__Tensor)"
    each = [f"isinstance(ow__out[{i}], ow__Tensor)" for i in range(len(outputs))]
    return " and ".join([f"type(ow__out) is tuple and len(ow__out) == {len(outputs)}", *each])


def _header(signature: Signature, name: str, checked: Sequence[Parameter]) -> tuple[list[str], dict[str, Any]]:
    names: dict[str, Any] = dict(FAST_NAMES)
    pieces, starred = [], False
    for p in signature.parameters:
        if p.keyword_only and not starred:
            pieces.append("*")
            starred = True
        if p.default is EMPTY:
            pieces.append(p.name)
        else:
            names[f"ow__default_{p.name}"] = p.default
            pieces.append(f"{p.name}=ow__default_{p.name}")
    lines = [f"def ow__call({', '.join(pieces)}):"]
    for p in checked:
        names[f"ow__convert_{p.name}"] = lambda value, p=p: convert(name, p, value)
        lines.append(f"    if not ({p.kind.fast.format(v=p.name)}): {p.name} = ow__convert_{p.name}({p.name})")
    return lines, names


@lru_cache(None)  # operators of one signature have one source, which a kernel that is declared later seldom changes
def _code(source: str) -> CodeType:
    return compile(source, FILE, "exec")


def _compile(name: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    exec(_code("\n".join(lines)), names)
    function: Any = names["ow__call"]
    # Its own: Dynamo tells functions apart by their code.
    function.__code__ = function.__code__.replace(co_filename=FILE.format(name))
    function.__name__ = function.__qualname__ = name
    called: Callable[..., Any] = function
    return called
