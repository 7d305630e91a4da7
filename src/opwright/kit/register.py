"""The dispatcher's side of an operator: the only caller of torch.library.

An operator's kernels are registered once and look up the operator when they run. Defining it again swaps what
they find, so that nothing is ever deregistered while another thread may be inside it.
"""

from __future__ import annotations

import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import autocast, compiled, fake, locks, node, record
from opwright.kit.captured import digest
from opwright.kit.names import closed_over
from opwright.kit.untraced import untraced

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
NESTED = tuple(key for key in ("NestedTensorCPU", "NestedTensorCUDA") if _known(key))
"""What the key for every device leaves out."""
BELOW_AUTOGRAD = ("CompositeExplicitAutograd", *NESTED)


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
        self.changes = 0
        """How often it has become another."""
        self.met: set[type] = set()
        """The kinds of tensors, beside PyTorch's own, that it was called with since it last changed."""
        self.ruled: set[type] = set()
        """Those that have a rule for this overload."""
        self.ways: dict[str, Any] = {}
        """The overloads that lead past C++, once somebody needs them."""


_lock = locks.settled(locks.REGISTER)
_libraries: dict[str, torch.library.Library] = {}
_entries: dict[str, Entry] = {}
_by_overload: dict[str, Entry] = {}
_versions: dict[str, int] = {}
_hidden: set[str] = set()
_former: dict[str, weakref.WeakSet[Op[..., Any]]] = {}
"""The operators that others were defined in the place of, by name."""


def register(op: Op[..., Any], finish: Callable[[], None]) -> None:
    """Put the operator behind its name. It gets the overload to call, and is finished before anyone can find it."""
    if op.qualname in _entries:
        _prepare_to_unroute()
    with _lock:
        entry = _entries.get(op.qualname)
        if op.home is op:
            _refuse_robbery(op)
        if entry is not None:
            _refuse_another(entry.op, op)
        schema = op.signature.schema(op.name)
        # The rung of an operator that was replaced meanwhile must not take the name from its successor's.
        below = op.parent or op.form_of
        replaced = below is not None and find(below.qualname) is not below
        if entry is not None and entry.schema == schema and not replaced and _may_stand_for(op, entry.op):
            op.overload = entry.overload
            if op.home is op:
                compiled.forget(entry.op)
                _leave_behind(entry.op)
            finish()
            entry.op = op
            node.forget(entry)
            _unroute(entry)
            return
        if entry is not None and op.home is op:
            compiled.forget(entry.op)
            _leave_behind(entry.op)
        _define(op, schema, public=not replaced, finish=finish)


def _may_stand_for(op: Op[..., Any], known: Op[..., Any]) -> bool:
    """Whether an operator may take the place of another behind one overload. Graphs that were recorded with a gradient
    keep it, so that another one gets a name of its own."""
    if known.random != op.random:
        return False
    if op.parent is None or known.parent is None:
        return True
    return op.home is not known.home and op.home.digest == (known.home.stood or known.home.digest)


def _leave_behind(op: Op[..., Any]) -> None:
    """Graphs that were recorded with an operator keep it when it is defined again. What its reference names may be
    another by now, the same cell's constants: then nobody can differentiate them."""
    former = _former.setdefault(op.qualname, weakref.WeakSet())
    former.add(op)
    for each in former:
        each.outdated = each.outdated or each.stood not in (None, each.digest)


def _refuse_robbery(op: Op[..., Any]) -> None:
    """An operator's gradient and the form that saves have names of their own."""
    for suffix, what in (("_backward", "gradient"), ("_saving", "form that saves")):
        below = _entries.get(op.qualname.removesuffix(suffix)) if op.name.endswith(suffix) else None
        above = _entries.get(op.qualname + suffix)
        taken = op.name if below is not None else f"{op.name}{suffix}"
        base = op.name.removesuffix(suffix) if below is not None else op.name
        if below is not None or (above is not None and above.op.home is above.op):
            declare = "gradient" if suffix == "_backward" else 'saving("…")'
            raise ValueError(
                f"{op.name}: {taken} is what the {what} of {base} is called; declare it with @{base}.{declare}, "
                f"or choose another name"
            )


def _prepare_to_unroute() -> None:
    from opwright.kit import native  # which imports this file

    native.available()  # it may load the library, which is not to be done while the lock is held


def _unroute(entry: Entry) -> None:
    from opwright.kit import native  # which imports this file

    native.unroute(entry.overload.name())


def entry_of(name: str) -> Entry:
    """What stands behind an overload of ours."""
    return _by_overload[name]


def meet(name: str, given: list[Tensor]) -> None:
    """Give the kinds of tensors that have a `__torch_dispatch__` of their own (DTensor, nested tensors, anybody's
    subclass) a rule for an operator: theirs where they have one, else the reference, which they may well serve."""
    entry = _by_overload[name]
    for kind in {type(t) for t in given}:
        own = getattr(kind, "__torch_dispatch__", None)
        tracer = kind.__module__.startswith(("torch._subclasses", "torch.fx", "torch._functorch"))
        if own is None or tracer or own is torch._C._disabled_torch_dispatch_impl or kind in entry.met:  # type: ignore[attr-defined]
            continue
        with _lock:
            entry.met.add(kind)
            for each in {entry.op, entry.op.recorded_form if entry.op.has_rung else entry.op}:
                _give_rule(_by_overload[each.overload.name()], kind)


def _give_rule(entry: Entry, kind: Any) -> None:
    if kind in entry.ruled:
        return
    entry.ruled.add(kind)

    inside = threading.local()

    def rule(cls: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out: Any = NotImplemented
        if not getattr(inside, "asked", False):  # a kind that knows nothing of the operator may just call it again
            inside.asked = True
            try:
                out = kind.__torch_dispatch__(func, types, args, kwargs or {})
            except NotImplementedError:
                pass
            finally:
                inside.asked = False
        return entry.op.run_reference(*args, **(kwargs or {})) if out is NotImplemented else out

    library = _libraries[entry.op.namespace]
    torch.library.register_torch_dispatch(entry.overload.name(), kind, rule, lib=library)


def changed(op: Op[..., Any]) -> None:
    """The operator's kernels or its gradient are others than before: whoever wrote them down must look again."""
    for each in (op, op.parent, op.form_of):
        entry = None if each is None else _by_overload.get(each.overload.name())
        if entry is not None and entry.op is each:
            with _lock:
                node.forget(entry)


def if_unchanged(entry: Entry, changes: int, write: Callable[[], object]) -> bool:
    """Write down what was read of an operator, unless it has become another since; whether it was written."""
    with _lock:
        if entry.changes != changes:
            return False
        write()
        return True


def _refuse_another(known: Op[..., Any], op: Op[..., Any]) -> None:
    """Only the place that defined an operator may define it again, and not as another closure of one function."""
    if known.origin != op.origin:
        raise ValueError(
            f"{op.name}: {op.qualname} is defined already, in {known.file}; "
            f'choose another name, or a namespace of your own with @ow.op(namespace="…")'
        )
    old, new = known.reference, op.reference
    again = op.home is op and getattr(old, "__code__", old) is getattr(new, "__code__", new)
    if again and _differ(dict(closed_over(old)), dict(closed_over(new))):
        raise ValueError(
            f"{op.name}: the function that makes it ran twice with different values, and {op.qualname} can be one "
            f"operator only; give each a name of its own with @ow.op(name=…), or pass what differs as an argument"
        )


def _differ(known: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two references hold different things of the function around them; values and helpers by what they are,
    all else by identity."""
    values = (bool, int, float, complex, str, bytes, tuple, type(None), types.FunctionType)
    both = [(known[name], new[name]) for name in known.keys() & new.keys()]
    return any(a is not b and not (isinstance(a, values) and digest(a) == digest(b)) for a, b in both)


def define_hidden(op: Op[..., Any], overload: str) -> Any:
    """Define the overload that a built library's kernel answers to, once, and give it."""
    with _lock:
        # Always under the operator's own name, which is all that a built library knows; the key of the build in the
        # overload's tells apart what was built for another schema.
        name = f"{op.qualname}.{overload}"
        if name not in _hidden:
            _libraries[op.namespace].define(op.signature.schema(f"{op.name}.{overload}", hidden=f"_{overload}"))
            _hidden.add(name)
        return getattr(_own_packet(op), overload)


def _own_packet(op: Op[..., Any]) -> Any:
    """What the dispatcher has under an operator's name; torch.ops may show what a changed schema was put under."""
    namespace = getattr(torch.ops, op.namespace)
    shown = vars(namespace).get(op.name)
    if shown is not None and shown._qualified_op_name == op.qualname:
        return shown
    own = type(namespace).__getattr__(namespace, op.name)
    if shown is not None:
        setattr(namespace, op.name, shown)
    return own


def names_of(op: Op[..., Any]) -> str:
    """The internal names that this process has given to an operator and its gradients, which graphs may hold."""
    family = re.compile(f"{re.escape(op.qualname)}(_saving)?(_backward)*")
    return " ".join(f"{name}__{n}" for name, n in sorted(_versions.items()) if family.fullmatch(name))


def define_reference(op: Op[..., Any]) -> Any:
    """The overload that always runs the reference."""
    return _define_way(op, "reference", lambda op: op.run_differentiated)


def define_unrouted(op: Op[..., Any]) -> Any:
    """The overload that runs what C++ knows no kernel for."""
    return _define_way(op, "unrouted", lambda op: op.run_unrouted)


def define_rejecting(op: Op[..., Any]) -> Any:
    """The overload that raises what the reference would."""
    return _define_way(op, "rejecting", lambda op: op.run_rejecting)


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

            for key in (*BELOW_AUTOGRAD, "Autograd", *REFERENCE_KEYS):
                library.impl(name, untraced(run), key)
            entry.ways[kind] = getattr(getattr(torch.ops, op.namespace), name).default
        return entry.ways[kind]


def find(qualname: str) -> Op[..., Any] | None:
    """The operator that stands behind a name, if opwright defined it."""
    entry = _entries.get(qualname)
    return None if entry is None else entry.op


def recall(qualname: str) -> Op[..., Any]:
    """The operator of a name, as pickles want it."""
    op = find(qualname)
    if op is None and qualname.endswith("_backward"):
        return recall(qualname.removesuffix("_backward")).backward  # a rung that nobody has asked for here yet
    if op is None:
        raise LookupError(f"{qualname} is not defined here; import or ow.load the file that defines it first")
    return op


def operators() -> list[Op[..., Any]]:
    """Every operator defined so far, rungs included, in the order of definition."""
    return [entry.op for entry in _entries.values()]


def _define(op: Op[..., Any], schema: str, public: bool, finish: Callable[[], None]) -> None:
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
    op.overload = entry.overload
    _by_overload[entry.overload.name()] = entry
    finish()

    def reference(*args: Any, **kwargs: Any) -> Any:
        return entry.op.run_reference(*args, **kwargs)

    plain = _front_kernel(f"{op.namespace}::{name}")

    def front(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        extras = entry.op.home._extras
        nested = extras is None or not extras.once  # what a node keeps may be differentiated again, a layer further out
        if nested and entry.native and plain is not None and only_gradients():
            return plain.call_boxed(keyset, *args, **kwargs)
        return entry.op.run_transformed(*args, **kwargs)

    def below_autograd(*args: Any, **kwargs: Any) -> Any:
        return entry.op.run_kernel(*args, **kwargs)

    def autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if node.take_over(entry):
            return entry.overload.redispatch(keyset, *args, **kwargs)  # to C++, which stands at the devices' keys now
        return record.autograd_kernel(entry.op, keyset, args, kwargs)

    def faked(*args: Any, **kwargs: Any) -> Any:
        out = fake.run(entry.op, args, kwargs)
        compiled.stamp(entry.op, names_of(entry.op.home))  # now that what the reference imports is there
        return out

    def implement(function: Callable[..., Any], key: str, with_keyset: bool = False) -> None:
        library.impl(name, untraced(function), key, with_keyset=with_keyset)

    for key in BELOW_AUTOGRAD:
        implement(below_autograd, key)
    implement(autograd, "Autograd", with_keyset=True)
    for key in REFERENCE_KEYS:
        if key == FRONT:
            implement(front, key, with_keyset=True)
        else:
            implement(autocast.rule(lambda: entry.op, key) if key in autocast.DEVICES else reference, key)
    torch.library.register_fake(f"{op.namespace}::{name}", faked, lib=library)
    if public:
        setattr(namespace, op.name, packet)
        _entries[op.qualname] = entry
