"""Which operator stands behind which name of the dispatcher, and what else is defined for it there.

An operator's kernels are registered once and look up the operator when they run. Defining it again swaps what they
find, so that nothing is ever deregistered while another thread may be inside it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import locks, private
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op


# The reference answers whatever the dispatcher would otherwise take apart wrongly: torch.func's transforms (before
# an interpreter saves its state, so that the reference may start transforms itself), the legacy vmap, and autocast.
FRONT = "FuncTorchDynamicLayerFrontMode"
AUTOCAST = {
    "AutocastCPU": "cpu",
    "AutocastCUDA": "cuda",
    "AutocastXPU": "xpu",
    "AutocastHPU": "hpu",
    "AutocastMPS": "mps",
    "AutocastMTIA": "mtia",
    "AutocastPrivateUse1": "privateuseone",
}
"""Autocast's keys, and the kind of device of each."""


def known(key: str) -> bool:
    try:
        private.parse_key(key)
    except RuntimeError:
        return False
    return True


AUTOCAST_KEYS = tuple(key for key in AUTOCAST if known(key))
NESTED = tuple(key for key in ("NestedTensorCPU", "NestedTensorCUDA") if known(key))
"""What the key for every device leaves out."""
BELOW_AUTOGRAD = ("CompositeExplicitAutograd", *NESTED)
DISTRIBUTED = "torch.distributed.tensor"
"""Where DTensor is at home."""


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
        self.ways: dict[Any, int] = {}
        """The numbers of its ways back from C++, once somebody needs them."""


lock = locks.settled(locks.REGISTER)
libraries: dict[str, torch.library.Library] = {}
entries: dict[str, Entry] = {}
by_overload: dict[str, Entry] = {}
versions: dict[str, int] = {}
_hidden: set[str] = set()


def find(qualname: str) -> Op[..., Any] | None:
    """The operator that stands behind a name, if opwright defined it."""
    entry = entries.get(qualname)
    return None if entry is None else entry.op


def recall(qualname: str) -> Op[..., Any]:
    """The operator of a name, as pickles want it."""
    op = find(qualname)
    if op is None and qualname.endswith("_backward"):
        return recall(qualname.removesuffix("_backward")).backward  # a rung that nobody has asked for here yet
    if op is None:
        raise LookupError(f"{qualname} is not defined here; import or ow.load the file that defines it first")
    return op


class _Namespace(private.OpNamespace):  # type: ignore[misc]
    """`torch.ops.my_ops`, where the gradient of an operator is found by its name before anybody has asked for it: a
    program that was exported elsewhere names it."""

    __module__ = private.OpNamespace.__module__  # which is part of what an operator is called on disk

    def __getattr__(self, name: str) -> Any:
        try:
            return self._find(name)
        except AttributeError:
            qualname = f"{self.name}::{name}"
            if not name.endswith("_backward") or qualname in being_defined:
                raise
            try:
                recall(qualname).overload  # noqa: B018  it is in the dispatcher when somebody asks for it
            except (LookupError, TypeError):
                pass  # there is no such operator, or it has no gradient
            else:
                return self._find(name)
            raise

    def _find(self, name: str) -> Any:
        with lock:  # another thread may be about to define it, and it is one object
            known = vars(self).get(name)
            return super().__getattr__(name) if known is None else known


being_defined: set[str] = set()
"""What is on its way into the dispatcher: PyTorch asks for the name first, to see whether it is taken."""


def namespace(name: str) -> Any:
    """What `torch.ops` has under the name of a namespace, as operators of ours want it."""
    found = getattr(torch.ops, name)
    if type(found) is private.OpNamespace:
        found.__class__ = _Namespace
    return found


def operators() -> list[Op[..., Any]]:
    """Every operator defined so far, rungs included, in the order of definition."""
    return [entry.op for entry in entries.values()]


def entry_of(name: str) -> Entry:
    """What stands behind an overload of ours."""
    return by_overload[name]


def is_distributed(kind: type) -> bool:
    """Whether a kind of tensor is DTensor."""
    return kind.__module__ == DISTRIBUTED and kind.__name__ == "DTensor"


def any_distributed(given: Iterable[Any]) -> bool:
    """Whether there is a DTensor among arguments, for which an operator has rules that its reference has not."""
    return any(is_distributed(type(t)) for value in given for t in tensors(value))


def meet(name: str, given: list[Tensor]) -> bool:
    """Give the kinds of tensors that have a `__torch_dispatch__` of their own (nested tensors, anybody's subclass) a
    rule for an operator: theirs where they have one, else the reference, which they may well serve. DTensor has been
    told of all operators (sharding.py). Whether there is such a kind that is no tracer's."""
    entry, strangers = by_overload[name], False
    for kind in {type(t) for t in given}:
        if kind in entry.met:
            strangers = True
            continue
        own = getattr(kind, "__torch_dispatch__", None)
        tracer = kind.__module__.startswith(("torch._subclasses", "torch.fx", "torch._functorch"))
        if own is None or tracer or own is private.NO_TORCH_DISPATCH:
            continue
        strangers = True
        with lock:
            entry.met.add(kind)
            if is_distributed(kind):
                continue
            for each in {entry.op, entry.op.recorded_form if entry.op.has_rung else entry.op}:
                _give_rule(by_overload[each.overload.name()], kind)
    return strangers


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

    library = libraries[entry.op.namespace]
    torch.library.register_torch_dispatch(entry.overload.name(), kind, rule, lib=library)


def if_unchanged(entry: Entry, changes: int, write: Callable[[], object]) -> bool:
    """Write down what was read of an operator, unless it has become another since; whether it was written."""
    with lock:
        if entry.changes != changes:
            return False
        write()
        return True


def define_hidden(op: Op[..., Any], overload: str) -> Any:
    """Define the overload that a built library's kernel answers to, once, and give it."""
    with lock:
        # Always under the operator's own name, which is all that a built library knows; the key of the build in the
        # overload's tells apart what was built for another schema.
        name = f"{op.qualname}.{overload}"
        there = any(schema.overload_name == overload for schema in private.schemas_of(op.qualname))
        if name not in _hidden and not there:  # a library for C++ may have brought it along
            libraries[op.namespace].define(op.signature.schema(f"{op.name}.{overload}", hidden=f"_{overload}"))
            _hidden.add(name)
        return getattr(_own_packet(op), overload)


def define_words(op: Op[..., Any], overload: str) -> Any:
    """Define the overload under which a built library says what its kernel would do, once, and give it."""
    with lock:
        if f"{op.qualname}.{overload}" not in _hidden:
            taken = op.signature.schema(f"{op.name}.{overload}", hidden=f"_{overload}").rpartition(" -> ")[0]
            libraries[op.namespace].define(f"{taken} -> str")
            _hidden.add(f"{op.qualname}.{overload}")
        return getattr(_own_packet(op), overload)


def _own_packet(op: Op[..., Any]) -> Any:
    """What the dispatcher has under an operator's name; torch.ops may show what a changed schema was put under."""
    namespace = getattr(torch.ops, op.namespace)
    shown = vars(namespace).get(op.name)
    if shown is not None and shown._qualified_op_name == op.qualname:
        return shown
    own = private.OpNamespace.__getattr__(namespace, op.name)
    if shown is not None:
        setattr(namespace, op.name, shown)
    return own


def names_of(op: Op[..., Any]) -> str:
    """The internal names that this process has given to an operator and its gradients, which graphs may hold."""
    family = re.compile(f"{re.escape(op.qualname)}(_saving)?(_backward)*")
    return " ".join(f"{name}__{n}" for name, n in sorted(versions.items()) if family.fullmatch(name))
