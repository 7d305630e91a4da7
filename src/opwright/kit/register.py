"""The dispatcher's side of an operator: the only caller of torch.library.

An operator's kernels are registered once and look up the operator when they run. Defining it again swaps what
they find, so that nothing is ever deregistered while another thread may be inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import autocast, locks, node, record

if TYPE_CHECKING:
    from opwright.kit.op import Op

# The reference answers whatever the dispatcher would otherwise take apart wrongly: torch.func's transforms (before
# an interpreter saves its state, so that the reference may start transforms itself), the legacy vmap, and autocast.
FRONT = "FuncTorchDynamicLayerFrontMode"
_KEYS = (FRONT, "Batched", *autocast.DEVICES)


def _known(key: str) -> bool:
    try:
        torch._C._parse_dispatch_key(key)  # type: ignore[attr-defined]
    except RuntimeError:
        return False
    return True


REFERENCE_KEYS = tuple(key for key in _KEYS if _known(key))


def _front_kernel(name: str) -> Any:
    """What torch.func does by itself at its front door, as it is before ours takes the place."""
    return torch.library.get_kernel(name, FRONT) if hasattr(torch.library, "get_kernel") else None


def only_gradients() -> bool:
    """Whether every transform of torch.func that looks on is a gradient. These record as autograd does, so the node
    serves them, kernels and all; the others take a reference apart."""
    stack = torch._C._functorch.get_interpreter_stack() or []  # type: ignore[attr-defined]
    return all(layer.key() == torch._C._functorch.TransformType.Grad for layer in stack)


class Entry:
    """A name in the dispatcher and the operator that stands behind it now."""

    def __init__(self, op: Op[..., Any], schema: str, overload: Any) -> None:
        self.op, self.schema, self.overload = op, schema, overload
        self.native = False
        """Whether C++ records its calls."""
        self.ways: dict[str, Any] = {}
        """The overloads that lead past C++, once somebody needs them."""


_lock = locks.settled()
_libraries: dict[str, torch.library.Library] = {}
_entries: dict[str, Entry] = {}
_by_overload: dict[str, Entry] = {}
_versions: dict[str, int] = {}


def register(op: Op[..., Any]) -> Any:
    """Put the operator behind its name and give the overload to call."""
    with _lock:
        entry = _entries.get(op.qualname)
        if entry is not None:
            _refuse_another(entry.op, op)
        schema = op.signature.schema(op.name)
        # The rung of an operator that was replaced meanwhile must not take the name from its successor's.
        below = op.parent or op.form_of
        replaced = below is not None and find(below.qualname) is not below
        if entry is not None and entry.schema == schema and entry.op.random == op.random and not replaced:
            entry.op = op
            node.forget(entry)
            _unroute(entry)
            return entry.overload
        entry = _define(op, schema, public=not replaced)
        if not replaced:
            _entries[op.qualname] = entry
        _by_overload[entry.overload.name()] = entry
        return entry.overload


def _unroute(entry: Entry) -> None:
    from opwright.kit import native  # which imports this file

    native.unroute(entry.overload.name())


def entry_of(name: str) -> Entry:
    """What stands behind an overload of ours."""
    return _by_overload[name]


def changed(op: Op[..., Any]) -> None:
    """The operator's kernels or its gradient are others than before: whoever wrote them down must look again."""
    for each in (op, op.parent, op.form_of):
        entry = None if each is None else _by_overload.get(each.overload.name())
        if entry is not None and entry.op is each:
            node.forget(entry)


def _refuse_another(known: Op[..., Any], op: Op[..., Any]) -> None:
    """Only the place that defined an operator may define it again, and not as another closure of one function."""
    if known.origin != op.origin:
        raise ValueError(
            f"{op.name}: {op.qualname} is defined already, in {known.file}; "
            f'choose another name, or a namespace of your own with @ow.op(namespace="…")'
        )
    old, new = (getattr(o.reference, "__code__", None) for o in (known, op))
    if op.home is op and old is not None and old is new and _captured(known) != _captured(op):
        raise ValueError(
            f"{op.name}: the function that makes it ran twice with different values, and {op.qualname} can be one "
            f"operator only; give each a name of its own with @ow.op(name=…), or pass what differs as an argument"
        )


def _captured(op: Op[..., Any]) -> list[Any]:
    """What a reference holds of the function around it."""
    plain = (bool, int, float, complex, str, bytes, tuple, type(None))
    found = [cell.cell_contents for cell in getattr(op.reference, "__closure__", None) or ()]
    return [value if isinstance(value, plain) else id(value) for value in found]


def define_hidden(op: Op[..., Any], overload: str) -> Any:
    """Define the overload that a built library's kernel answers to, once, and give it."""
    with _lock:
        packet = getattr(getattr(torch.ops, op.namespace), op.name)
        if overload not in packet.overloads():
            name = packet._qualified_op_name.partition("::")[2]  # a changed schema lives under an internal name
            _libraries[op.namespace].define(op.signature.schema(f"{name}.{overload}", hidden=True))
        return getattr(getattr(getattr(torch.ops, op.namespace), op.name), overload)


def define_reference(op: Op[..., Any]) -> Any:
    """The overload that always runs the reference."""
    return _define_way(op, "reference", lambda op: op.run_reference)


def define_unrouted(op: Op[..., Any]) -> Any:
    """The overload that runs what C++ knows no kernel for."""
    return _define_way(op, "unrouted", lambda op: op.run_unrouted)


def _define_way(op: Op[..., Any], kind: str, choose: Callable[[Op[..., Any]], Callable[..., Any]]) -> Any:
    with _lock:
        entry = _by_overload[op.overload.name()]
        if kind not in entry.ways:
            # A name of its own: of overloads with equal arguments PyTorch deregisters the wrong one when it ends.
            name = f"{entry.overload.name().partition('::')[2]}__{kind}"
            library = _libraries[op.namespace]
            library.define(op.signature.schema(name))

            def run(*args: Any, **kwargs: Any) -> Any:
                return choose(entry.op)(*args, **kwargs)

            for key in ("CompositeExplicitAutograd", "Autograd", *REFERENCE_KEYS):
                library.impl(name, run, key)
            entry.ways[kind] = getattr(getattr(torch.ops, op.namespace), name).default
        return entry.ways[kind]


def find(qualname: str) -> Op[..., Any] | None:
    """The operator that stands behind a name, if opwright defined it."""
    entry = _entries.get(qualname)
    return None if entry is None else entry.op


def operators() -> list[Op[..., Any]]:
    """Every operator defined so far, rungs included, in the order of definition."""
    return [entry.op for entry in _entries.values()]


def _define(op: Op[..., Any], schema: str, public: bool) -> Entry:
    namespace = getattr(torch.ops, op.namespace)
    name = op.name
    if op.qualname not in _entries and torch._C._jit_get_schemas_for_operator(op.qualname):
        raise ValueError(f"{op.name}: {op.qualname} belongs to another library; choose another name or namespace")
    if op.qualname in _entries or not public:
        # The schema changed. What was compiled with the old one keeps it; the name now leads to the new one.
        _versions[op.qualname] = _versions.get(op.qualname, 1) + 1
        name = f"{op.name}__{_versions[op.qualname]}"
    library = _libraries.setdefault(op.namespace, torch.library.Library(op.namespace, "FRAGMENT"))
    tags = [torch.Tag.nondeterministic_seeded] if op.random else []
    library.define(schema.replace(op.name, name, 1), tags=tags)
    packet = getattr(namespace, name)
    entry = Entry(op, schema, packet.default)
    if public:
        setattr(namespace, op.name, packet)

    def reference(*args: Any, **kwargs: Any) -> Any:
        return entry.op.run_reference(*args, **kwargs)

    plain = _front_kernel(f"{op.namespace}::{name}")

    def front(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if entry.native and plain is not None and only_gradients():
            return plain.call_boxed(keyset, *args, **kwargs)
        return entry.op.run_reference(*args, **kwargs)

    def below_autograd(*args: Any, **kwargs: Any) -> Any:
        return entry.op.run_kernel(*args, **kwargs)

    def autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        node.take_over(entry)
        return record.autograd_kernel(entry.op, keyset, args, kwargs)

    def implement(function: Callable[..., Any], key: str, with_keyset: bool = False) -> None:
        library.impl(name, function, key, with_keyset=with_keyset)

    implement(below_autograd, "CompositeExplicitAutograd")
    implement(autograd, "Autograd", with_keyset=True)
    for key in REFERENCE_KEYS:
        if key == FRONT:
            implement(front, key, with_keyset=True)
        else:
            implement(autocast.rule(lambda: entry.op, key) if key in autocast.DEVICES else reference, key)
    torch.library.register_fake(f"{op.namespace}::{name}", reference, lib=library)
    return entry
