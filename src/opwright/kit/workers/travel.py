"""How an operator reaches another process: by the name of its module, by its file, as source, or pickled.

A pickle goes through a pipe to a process that this one has started; it is never read from a file.
"""

from __future__ import annotations

import base64
import importlib
import io
import pickle
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opwright.kit.build.foreign import is_loaded
from opwright.kit.derive.roles import Role
from opwright.kit.dispatch import registry
from opwright.kit.load import load
from opwright.kit.op import Op
from opwright.kit.spec.operator import Spec
from opwright.kit.workers.source import INSIDE, functions, sources

Ticket = dict[str, Any]
CURE = "install cloudpickle (pip install 'opwright[notebook]'), or define it at the top level of a file"


class Stranded(LookupError):
    """An operator cannot be defined in another process."""


def ticket(op: Op[..., Any], paths: Sequence[str] = ()) -> Ticket:
    """What another process needs to define the operator: to load `paths`, if there are any. Stranded: it cannot."""
    home = op.home
    way = {"load": list(paths)} if paths else _way(home)
    known = {"name": home.qualname, "schema": home.schema, "declared": _counts(home)}
    return {**known, "path": [p for p in sys.path if p], **way}


def _way(op: Op[..., Any]) -> Ticket:
    way, why = _by_name(op), f"{op.name} {INSIDE}"
    if way is not None and _is_of_its_module(op):
        return way
    if way is None:
        try:
            pieces, missing = sources(op)
            way = {"sources": pieces}
            if not missing:
                return way
        except LookupError as e:
            why = str(e)
    try:
        loaded = {"load": way["load"]} if way and "load" in way else {}
        return {**loaded, "pickle": packed(op)}
    except Stranded as e:
        if way is None:
            raise Stranded(f"{why}; {e}") from None
        return {**way, "hint": str(e)}  # it can only be tried


def _by_name(op: Op[..., Any]) -> Ticket | None:
    """Where another process finds the module that defines an operator; None for scripts and notebooks."""
    module = op.__module__
    if is_loaded(module) and op.file is not None:
        return {"load": [op.file]}
    found = sys.modules.get(module)
    if module == "__main__" or found is None or getattr(found, "__spec__", None) is None:
        return None
    return {"module": module}


def _is_of_its_module(op: Op[..., Any]) -> bool:
    """Whether importing its module makes it, as far as one can see: nothing was added to it from a notebook."""
    module = vars(sys.modules[op.__module__]).values() if op.__module__ in sys.modules else ()
    return any(value is op for value in module) and all(f.__module__ != "__main__" for f in functions(op))


def identity(op: Op[..., Any]) -> object:
    """What tells an operator from what it was before it was defined again, or more was declared."""
    family = [op.home] if op.home.functional is None else [op.home, op.home.functional.home]
    return [(each.digest, [rung.spec for rung in each.ladder if any(rung.spec.declared.values())]) for each in family]


def _counts(op: Op[..., Any]) -> list[list[int]]:
    """How much was declared of an operator and of its gradients, field by field."""
    declared = [rung.spec.declared.values() for rung in op.ladder]
    counts = [[len(v) if isinstance(v, tuple) else int(v is not None) for v in values] for values in declared]
    return [each for each in counts if any(each)]


def arrive(given: Ticket) -> Op[..., Any]:
    """Define the operator that a ticket speaks of, and its gradient, in this process, and give it."""
    sys.path[:] = dict.fromkeys([*sys.path, *given["path"]])
    if "load" in given:
        for file in given["load"]:
            load(file)
    if "module" in given:
        importlib.import_module(given["module"])
    if "sources" in given:
        # Its classes are looked up where they say that they are.
        sys.modules["__main__"] = script = types.ModuleType("__main__")
        for file, text in given["sources"]:
            script.__file__ = file
            exec(compile(text, file, "exec", dont_inherit=True), script.__dict__)
    if "pickle" in given:
        pickle.loads(base64.b64decode(given["pickle"]))
    op = registry.find(given["name"])
    if op is None:
        hint = f"; {given['hint']}" if "hint" in given else ""
        raise LookupError(f"{given['name']} {INSIDE}{hint}")
    if op.schema != given["schema"] or _counts(op) != given["declared"]:
        raise LookupError(f"{given['name']} is not what its file defines: it was changed after that was loaded")
    op.define_gradient()
    return op


def form(home: Op[..., Any], name: str) -> Op[..., Any]:
    """The operator of this name among one, its form that saves and its gradients."""
    op = home
    while True:
        for found in (op, op.saving_form):
            if found is not None and found.name == name:
                return found
        op = op.backward


# --- pickled ---------------------------------------------------------------------------------------------------


def packed(op: Op[..., Any]) -> str:
    """An operator with all that its functions refer to, for `pickle`; Stranded where that cannot be."""
    try:
        import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise Stranded(CURE) from None

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, Op):
                return _reduced(value, by_name=value is not op)
            return super().reducer_override(value)

    file = io.BytesIO()
    try:
        Pickler(file).dump(op)
    except Exception as e:
        raise Stranded(f"{op.name} cannot be pickled: {e}") from None
    return base64.b64encode(file.getvalue()).decode()


def _reduced(op: Op[..., Any], by_name: bool) -> tuple[Any, ...]:
    if op.home is not op:
        return form, (op.home, op.name)
    if by_name and _by_name(op) is not None and _is_of_its_module(op):
        return arrive, (ticket(op),)
    # Made in two steps, since its functions may refer to it.
    return Op.__new__, (Op,), (op.spec, op.role, _declared(op)), None, None, _define


Declared = tuple[dict[str, Any], "Declared | None", "Declared | None"]
"""What was said of an operator after it was made, of its form that saves, and of its gradient."""


def _declared(op: Op[..., Any]) -> Declared:
    above = op.__dict__.get("_backward")
    saving = None if op.saving_form is None else _declared(op.saving_form)
    return op.spec.declared, saving, None if above is None else _declared(above)


def _define(op: Op[..., Any], state: tuple[Spec, Role, Declared]) -> None:
    spec, role, declared = state
    Op.__init__(op, spec.bare, role)
    _declare(op, declared)


def _declare(op: Op[..., Any], said: Declared) -> None:
    declared, saving, above = said
    if saving is not None:
        op.save(declared["extras"])
        assert op.saving_form is not None
        _declare(op.saving_form, saving)
    op.become(replace(op.spec, **declared))
    if above is not None and op.has_rung:
        _declare(op.backward, above)
