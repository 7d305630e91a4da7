"""How an operator gets behind its name in the dispatcher, and how another takes its place."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import private
from opwright.kit.dispatch import autocast, batching, bind, compiled, fake, meshes, native, node, record, registry
from opwright.kit.dispatch.untraced import untraced
from opwright.kit.spec.captured import digest
from opwright.kit.spec.names import closed_over

if TYPE_CHECKING:
    from opwright.kit.op import Op


def _front_kernel(name: str) -> Any:
    """What torch.func does by itself at its front door, as it is before ours takes the place."""
    return torch.library.get_kernel(name, registry.FRONT) if hasattr(torch.library, "get_kernel") else None


_former: dict[str, weakref.WeakSet[Op[..., Any]]] = {}
"""The operators that others were defined in the place of, by name."""


def register(op: Op[..., Any]) -> None:
    """Put the operator behind its name. It gets the overload to call, and is bound before anyone can find it."""
    if op.qualname in registry.entries:
        native.available()  # it may load the library, which is not to be done while the lock is held
    with registry.lock:
        entry = registry.entries.get(op.qualname)
        if op.home is op:
            _refuse_robbery(op)
        if entry is not None:
            _refuse_another(entry.op, op)
        schema = op.signature.schema(op.name)
        replaced = _belongs_to_a_former(op)
        if entry is not None and entry.schema == schema and not replaced and _may_stand_for(op, entry.op):
            op.registered = entry.overload
            if op.home is op:
                compiled.forget(entry.op)
                _leave_behind(entry.op)
            bind.replace(entry, op)
            meshes.changed(op)
            return
        if entry is not None and op.home is op:
            compiled.forget(entry.op)
            _leave_behind(entry.op)
        _define(op, schema, public=not replaced)


def _belongs_to_a_former(op: Op[..., Any]) -> bool:
    """Whether another has taken the place of an operator below: this one must not take the name from the other's."""
    below = op.role.below
    while below is not None:
        if registry.find(below.qualname) not in (None, below):
            return True
        below = below.role.below
    return False


def _may_stand_for(op: Op[..., Any], known: Op[..., Any]) -> bool:
    """Whether an operator may take the place of another behind one overload. Graphs that were recorded with a gradient
    keep it, so that another one gets a name of its own."""
    if known.random != op.random or known.spec.tags != op.spec.tags:
        return False
    if not (op.is_gradient and known.is_gradient):
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
        below = registry.entries.get(op.qualname.removesuffix(suffix)) if op.name.endswith(suffix) else None
        above = registry.entries.get(op.qualname + suffix)
        taken = op.name if below is not None else f"{op.name}{suffix}"
        base = op.name.removesuffix(suffix) if below is not None else op.name
        if below is not None or (above is not None and above.op.home is above.op):
            declare = "gradient" if suffix == "_backward" else 'saving("…")'
            raise ValueError(
                f"{op.name}: {taken} is what the {what} of {base} is called; declare it with @{base}.{declare}, "
                f"or choose another name"
            )


def _refuse_another(known: Op[..., Any], op: Op[..., Any]) -> None:
    """Only the place that defined an operator may define it again, and not as another closure of one function."""
    if known.origin != op.origin:
        raise ValueError(
            f"{op.name}: {op.qualname} is defined already, in {known.file}; "
            f'choose another name, or a namespace of your own with @ow.op(namespace="…")'
        )
    old, new = known.reference, op.reference
    own = op.home is op and op.functional is None  # what an in-place form computes, its operator was asked about
    again = own and getattr(old, "__code__", old) is getattr(new, "__code__", new)
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


def _is_loaded_without_python(op: Op[..., Any], schema: str) -> bool:
    """Whether a library for C++ has brought the operator along, to be taken over. Another's is an error."""
    there = [s for s in private.schemas_of(op.qualname) if not s.overload_name]
    if not there:
        return False
    if not native.is_alone(op.qualname):
        raise ValueError(f"{op.name}: {op.qualname} belongs to another library; choose another name or namespace")
    if there[0] != private.parse_schema(f"{op.namespace}::{schema}"):
        raise ValueError(
            f"{op.name}: a library for C++ has brought it into this process as {there[0]}, and here it is {schema}; "
            f"build the library again from the same source"
        )
    return True


def _define(op: Op[..., Any], schema: str, public: bool) -> None:
    namespace = registry.namespace(op.namespace)
    name = op.name
    alone = op.qualname not in registry.entries and _is_loaded_without_python(op, schema)
    if op.qualname in registry.entries or not public:
        # The schema changed. What was compiled with the old one keeps it; the name now leads to the new one.
        registry.versions[op.qualname] = registry.versions.get(op.qualname, 1) + 1
        name = f"{op.name}__{registry.versions[op.qualname]}"
    library = registry.libraries.setdefault(op.namespace, torch.library.Library(op.namespace, "FRAGMENT"))
    tags = {torch.Tag.pt2_compliant_tag, *op.spec.tags, *([torch.Tag.nondeterministic_seeded] if op.random else [])}
    if not alone:
        registry.being_defined.add(f"{op.namespace}::{name}")
        try:
            library.define(schema.replace(op.name, name, 1), tags=tuple(tags))
        finally:
            registry.being_defined.discard(f"{op.namespace}::{name}")
    packet = getattr(namespace, name)
    entry = registry.Entry(op, schema, packet.default)
    op.registered = entry.overload
    registry.by_overload[entry.overload.name()] = entry
    if alone:
        node.adopt(entry)

    def reference(*args: Any, **kwargs: Any) -> Any:
        return entry.op.run_reference(*args, **kwargs)

    plain = _front_kernel(f"{op.namespace}::{name}")

    def front(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        # What is declared is cast before a transform takes it apart, whose layers know nothing of the whole.
        device = autocast.device_of(args, kwargs)
        if device is not None and entry.op.home.autocast is not None:
            return autocast.run(entry.op, device, args, kwargs)
        spec = entry.op.home.spec
        # What a node keeps may be differentiated again, a layer further out.
        nested = spec.extras is None or not (spec.extras.once or entry.op.home.surrogate)
        # Gradients record as autograd does, so the node serves them, and an author may serve vmap; what else there is
        # takes a reference apart.
        whole = batching.keeps_kernels(entry.op)
        if whole and batching.innermost_is_vmap():
            return batching.run(entry.op, args, kwargs)
        # A gradient may be met by a transform before anybody else has called it.
        if (
            device is None
            and whole
            and nested
            and plain is not None
            and (entry.native or node.take_over(entry, watched=True))
        ):
            return plain.call_boxed(keyset, *args, **kwargs)
        return entry.op.run_transformed(*args, **kwargs)

    def below_autograd(*args: Any, **kwargs: Any) -> Any:
        return entry.op.run_kernel(*args, **kwargs)

    def autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if node.take_over(entry):
            return entry.overload.redispatch(keyset, *args, **kwargs)  # to C++, which stands at the devices' keys now
        return record.autograd_kernel(entry.op, keyset, args, kwargs)

    def casting(device: str) -> Any:
        def cast(*args: Any, **kwargs: Any) -> Any:
            return autocast.run(entry.op, device, args, kwargs)

        return cast

    def faked(*args: Any, **kwargs: Any) -> Any:
        out = fake.run(entry.op, args, kwargs)
        compiled.stamp(entry.op, registry.names_of(entry.op.home))  # now that what the reference imports is there
        return out

    def implement(function: Callable[..., Any], key: str, with_keyset: bool = False) -> None:
        private.implement(library, name, untraced(function), key, with_keyset)

    for key in registry.BELOW_AUTOGRAD:
        implement(below_autograd, key)
    implement(autograd, "Autograd", with_keyset=True)
    implement(front, registry.FRONT, with_keyset=True)
    implement(reference, "Batched")
    for key in registry.AUTOCAST_KEYS:
        implement(casting(registry.AUTOCAST[key]), key)
    private.register_fake(library, name, faked)
    bind.bind(op)  # last: from here on other threads call the overload
    if public:
        setattr(namespace, op.name, packet)
        registry.entries[op.qualname] = entry
    meshes.introduce(entry)
