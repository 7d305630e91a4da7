"""The Python function behind an operator's call, written for its signature.

Binding, defaults, checks and conversions run on every call, so they are generated once as straight-line code: a
loop over parameters would cost more than a small operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwright.kit import probe
from opwright.kit.kinds import FAST_NAMES
from opwright.kit.schema import EMPTY, Parameter, Signature


def direct(
    name: str, signature: Signature, reference: Callable[..., Any], random: bool, gradient: bool
) -> Callable[..., Any]:
    """A function that checks its arguments, runs the reference and checks what comes out."""
    lines, names = _header(signature, name, checked=signature.parameters)
    arguments = []
    for p in signature.parameters:
        value = p.name
        if p.kind.is_tensor and not p.differentiable:
            names["_detach"] = _detach
            value = f"_detach({p.name})"
        arguments.append(f"{p.name}={value}" if p.keyword_only else value)
    call = f"_reference({', '.join(arguments)})"
    state = probe.State(name, signature, reference, random, gradient)
    names.update(_reference=reference, _state=state, _is_compiling=torch.compiler.is_compiling)
    names.update(_outputs=lambda out: read_outputs(out, name, signature))
    # is_compiling stands first: a graph must not depend on whether the probe has run.
    lines.append("    if not _is_compiling() and _state.fresh:")
    lines.append(f"        out = _state.run({', '.join(arguments)})")
    lines.append("    else:")
    lines.append(f"        out = {call}")
    inputs = [p.name for p in signature.parameters if p.kind.schema.startswith("Tensor") and not p.kind.is_list]
    if signature.returns_input:
        lines.append(f"    return {signature.returns_input}")
    else:
        if signature.single and inputs and not gradient:
            names["_refuse"] = lambda out, given: probe.refuse_alias(name, list(given.items()), out)
            given = ", ".join(f"{n!r}: {n}" for n in inputs)
            lines.append(f"    if {' or '.join(f'out is {n}' for n in inputs)}: _refuse(out, {{{given}}})")
        lines.append(f"    return out if {_fast_output(signature)} else _outputs(out)")
    return _compile(name, lines, names)


def dispatched(
    name: str, signature: Signature, overload: Any, inline: Callable[..., Any], devices: frozenset[str] | None
) -> Callable[..., Any]:
    """A function that goes through the dispatcher, which checks tensors itself; numbers are checked here, since
    the dispatcher would quietly take a tensor for a number and drop its gradient. Graphs for devices other than
    `devices` (None: for no device) hold what `inline` does instead."""
    lines, names = _header(signature, name, checked=[p for p in signature.parameters if not p.kind.is_tensor])
    arguments = []
    for p in signature.parameters:
        value = p.name
        if p.kind.encode:
            names[f"_encode_{p.name}"] = p.kind.encode
            value = f"_encode_{p.name}({p.name})"
        arguments.append(f"{p.name}={value}" if p.keyword_only else value)
    given = ", ".join(arguments)
    tensors = [p for p in signature.parameters if p.kind.is_tensor]
    names.update(_overload=overload, _op=overload._op, _is_compiling=torch.compiler.is_compiling)
    names.update(_convert_all=lambda *values: [convert(name, p, v) for p, v in zip(tensors, values, strict=True)])
    names.update(_make=signature.container)
    lines.append("    if _is_compiling():")
    first = next((p.name for p in signature.parameters if p.kind.schema == "Tensor"), None)
    if devices is not None and first is not None:
        names.update(_inline=inline, _devices=devices)
        plain = ", ".join(f"{p.name}={p.name}" if p.keyword_only else p.name for p in signature.parameters)
        lines.append(f"        if {first}.device.type not in _devices: return _inline({plain})")
    lines += [
        f"        out = _overload({given})",
        "    else:",
        "        try:",
        f"            out = _op({given})",
        "        except (RuntimeError, TypeError):",
        f"            _convert_all({', '.join(p.name for p in tensors)})",
        "            raise",
    ]
    if signature.returns_input:
        lines.append(f"    return {signature.returns_input}")
    elif signature.container:
        lines.append("    return _make((out,))" if len(signature.outputs) == 1 else "    return _make(out)")
    elif len(signature.outputs) == 1 and not signature.single:
        lines.append("    return (out,)")
    else:
        lines.append("    return out")
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
        raise TypeError(
            f"{name}: {parameter.name} must be {parameter.kind.says}, got {_describe(value)}{hint}"
        ) from None


def _describe(value: Any) -> str:
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
            raise TypeError(f"{name}: the reference returned {_describe(out)}, its annotation promises None")
        return None
    values = (out,) if signature.single else out
    if not isinstance(values, (tuple, list)) or len(values) != len(outputs):
        raise TypeError(
            f"{name}: the reference returned {_describe(out)}, its annotation promises {len(outputs)} results; "
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
                f"{name}: the reference returned {_describe(value)}{which}, its annotation promises "
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
        return "isinstance(out, _Tensor)"
    each = [f"isinstance(out[{i}], _Tensor)" for i in range(len(outputs))]
    return " and ".join([f"type(out) is tuple and len(out) == {len(outputs)}", *each])


def _header(signature: Signature, name: str, checked: Any) -> tuple[list[str], dict[str, Any]]:
    names: dict[str, Any] = dict(FAST_NAMES)
    pieces, starred = [], False
    for p in signature.parameters:
        if p.keyword_only and not starred:
            pieces.append("*")
            starred = True
        if p.default is EMPTY:
            pieces.append(p.name)
        else:
            names[f"_default_{p.name}"] = p.default
            pieces.append(f"{p.name}=_default_{p.name}")
    lines = [f"def {name}({', '.join(pieces)}):"]
    for p in checked:
        names[f"_convert_{p.name}"] = lambda value, p=p: convert(name, p, value)
        lines.append(f"    if not ({p.kind.fast.format(v=p.name)}): {p.name} = _convert_{p.name}({p.name})")
    return lines, names


def _compile(name: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    exec(compile("\n".join(lines), f"<opwright call of {name}>", "exec"), names)
    function: Callable[..., Any] = names[name]
    return function


def inlined(direct: Callable[..., Any], dispatched: Callable[..., Any]) -> Callable[..., Any]:
    """A call that torch.compile sees through, and that goes through the dispatcher everywhere else."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        return direct(*args, **kwargs) if torch.compiler.is_compiling() else dispatched(*args, **kwargs)

    return choose


def kept_by_export(direct: Callable[..., Any], dispatched: Callable[..., Any]) -> Callable[..., Any]:
    """A call that torch.export keeps whole: it cannot trace the derivation inside a rung."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        return dispatched(*args, **kwargs) if torch.compiler.is_exporting() else direct(*args, **kwargs)

    return choose
