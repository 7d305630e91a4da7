"""What DTensor asks of an operator, and is told. Nothing here imports torch.distributed: when somebody does
(meshes.py), DTensor is told of the operators.

Every operator gets a strategy for a whole mesh, which decides from the call alone. A strategy for one dimension of it
would be told neither its size nor where tensors are, and so not whether a rule fits their pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.derive.roles import Gradient
from opwright.kit.dispatch import any_size, carry, groups, registry
from opwright.kit.dispatch.sharding import Found, find, has_lists
from opwright.kit.dispatch.traced import Meta, Unclear, results
from opwright.kit.dispatch.untraced import untraced
from opwright.kit.private import dtensors
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.shard import PARTIAL, REPLICATE, Placement, Rule
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

MODULE = registry.DISTRIBUTED


class ByReference(NotImplementedError):
    """A call that PyTorch is to run step by step, by its reference."""


# --- what DTensor asks ---------------------------------------------------------------------------------------------


def _values(op: Op[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, tensors as `Meta`."""
    dt = dtensors.parts()

    def read(value: Any) -> Any:
        spec = value.strategies[0].output_spec if isinstance(value, dt.OpStrategy) else value
        meta = spec.tensor_meta if isinstance(spec, dt.Spec) else spec
        return Meta(tuple(meta.shape), meta.dtype) if isinstance(meta, dt.Meta) else value

    return {n: read(v) for n, v in op.signature.bind(tuple(args), dict(kwargs)).items()}


def _rows(op: Op[..., Any], values: Mapping[str, Any], rules: Sequence[Rule], present: Sequence[str], cut: Any) -> Any:
    """Rules as DTensor takes them: placements of the results, then of the tensors that are given."""
    dt = dtensors.parts()

    def place(where: Placement) -> Any:
        return dt.Replicate() if where == REPLICATE else dt.Partial() if where == PARTIAL else cut(where)

    absent = _absent(op, values)
    rows = []
    for rule in rules:
        outs = [None if i in absent else place(o) for i, o in enumerate(rule.outputs)]
        rows.append([*outs, *(place(rule.inputs.get(name, REPLICATE)) for name in present)])
    return rows


def _absent(op: Op[..., Any], values: Mapping[str, Any]) -> set[int]:
    """The results that a call does not give: optional ones, gradients that are not wanted."""
    role = op.role
    if not isinstance(role, Gradient):
        if not any(o.kind.is_optional for o in op.signature.outputs):
            return set()
        try:
            return {i for i, shape in enumerate(results(op, values)) if shape is None}
        except Exception:
            return set()  # whoever calls it will be told
    mask = values.get(role.rung.wanted)
    absent = {i for i, wanted in enumerate(mask or ()) if not wanted}
    for i, p in enumerate(role.of.signature.differentiable_inputs):
        given = values.get(p.name)
        counted = type(given) is Meta and not (given.dtype.is_floating_point or given.dtype.is_complex)
        if p.name in role.rung.inputs and (given is None or counted):
            absent.add(i)
    return absent


def _whole(op: Op[..., Any]) -> Rule:
    return Rule("nothing", {}, (REPLICATE,) * len(op.signature.outputs))


def _present(op: Op[..., Any], values: Mapping[str, Any]) -> list[str]:
    """The tensors that are given, positional ones first."""
    given = [p for p in op.signature.parameters if type(values.get(p.name)) is Meta]
    return [p.name for p in sorted(given, key=lambda p: p.keyword_only)]


def _strategy(entry: registry.Entry) -> Any:
    """What DTensor asks where an operator's tensors must be."""
    memo: dict[Any, tuple[Found, Any]] = {}

    def strategy(schema: Any, *, fixed: bool = True) -> Any:
        op, dt = entry.op, dtensors.parts()
        values = _values(op, schema.args_schema, schema.kwargs_schema)
        given = op.signature.bind(tuple(schema.args_schema), dict(schema.kwargs_schema))
        specs = {n: given[n].strategies[0].output_spec for n, v in values.items() if type(v) is Meta}
        mesh = _one_mesh(op, {n: s.mesh for n, s in specs.items()})
        values |= {n: values[n]._replace(device=mesh.device_type) for n in specs}
        key = _key(entry, values, specs, fixed)
        kept = memo.get(key) if key is not None else None
        if kept is None:
            found = find(op, values, specs, mesh)
            kept = found, None if found.source == "reference" else made(op, found, values, specs, mesh, schema, fixed)
            if key is not None:
                memo[key] = kept
        if kept[0].source == "reference":
            raise ByReference(f"{op.name}: {kept[0].why}")
        return dt.OpStrategy(list(kept[1]))  # a list of its own: who asks may write to it

    def made(op: Any, found: Found, values: Any, specs: Any, mesh: Any, schema: Any, fixed: bool) -> Any:
        dt = dtensors.parts()
        present = _present(op, values)
        if found.source == "carried":
            whole = [dt.Spec(mesh, p) if p is not None else None for p in found.carried]
            outs = whole[0] if len(whole) == 1 else tuple(whole)
            costs = [[0.0]] * len(present)
            return [dt.OpSpec(outs, tuple(specs[n] for n in present), costs)]
        rules = [_whole(op), *(found.rules or [])]
        cuts = _cuts(specs.values())
        rows = [(rule, row) for build in cuts for rule in rules for row in _rows(op, values, [rule], present, build)]
        made = dt.expand(mesh, schema, [row for _, row in rows], input_index=len(op.signature.outputs))
        made.strategies = groups.allowed(op, values, mesh, rows, made.strategies)
        keywords = {i: specs[n].placements for i, n in enumerate(present) if op.signature.names[n].keyword_only}
        if fixed and keywords:  # nobody moves those: a rule that wants them elsewhere would be broken in silence
            made.strategies = [
                s for s in made.strategies if all(s.input_specs[i].placements == p for i, p in keywords.items())
            ]
        if found.source == "declared":
            made.strategies = [_first_that_fits(op, values, {n: specs[n] for n in present}, made, mesh)]
        return made.strategies

    return strategy


def _first_that_fits(
    op: Op[..., Any], values: Mapping[str, Any], given: Mapping[str, Any], made: Any, mesh: Any
) -> Any:
    """The best strategy whose pieces the operator takes, for every device: were it to refuse one device's, the others
    would wait for that forever. Tensors that are whole it takes."""
    while True:
        best = dtensors.cheapest(made, given.values())
        if len(made.strategies) == 1 or _fits(op, values, list(given), best, mesh):
            return best
        made.strategies = [s for s in made.strategies if s is not best]


def _fits(op: Op[..., Any], values: Mapping[str, Any], present: Sequence[str], chosen: Any, mesh: Any) -> bool:
    """Whether each device's run gives its part of the whole, as far as shapes tell."""
    specs = dict(zip(present, chosen.input_specs, strict=True))
    if not any(p.is_shard() for s in specs.values() for p in s.placements):
        return True
    outs = chosen.output_specs if isinstance(chosen.output_specs, (tuple, list)) else (chosen.output_specs,)
    if any_size.is_open(values):
        return any_size.fits(op, values, specs, outs, mesh)
    try:
        whole = results(op, values)
    except Exception:
        return True  # DTensor has run it so itself, and raised on every rank alike
    try:
        for coordinate, piece in carry.kinds_of_pieces(values, specs, mesh):
            want = [
                None if shape is None or spec is None else carry.cut(shape, spec.placements, mesh, coordinate)
                for shape, spec in zip(whole, outs, strict=True)
            ]
            if results(op, piece) != want:
                return False
    except Unclear:
        return True  # strides, which PyTorch itself cuts into even pieces alone
    except Exception:
        return False
    return True


def _one_mesh(op: Op[..., Any], meshes: Mapping[str, Any]) -> Any:
    """The mesh that all tensors are on."""
    first = next(iter(meshes))
    for name, mesh in meshes.items():
        if mesh != meshes[first]:
            raise ValueError(
                f"{op.name}: {name} is on {_spell(mesh)}, and {first} on {_spell(meshes[first])}; all tensors of a "
                f"call must be on one mesh"
            )
    return meshes[first]


def _spell(mesh: Any) -> str:
    names = f", {mesh.mesh_dim_names}" if mesh.mesh_dim_names else ""
    return f"DeviceMesh({mesh.mesh.tolist()}, {mesh.device_type!r}{names})"


def _cuts(specs: Any) -> list[Any]:
    """What makes a cut along a dimension: plain ones, and in the strides that the tensors have."""
    dt = dtensors.parts()
    strides = {p.split_factor for s in specs for p in s.placements if isinstance(p, dt.StridedShard)}
    return [dt.Shard, *(lambda dim, by=by: dt.StridedShard(dim, split_factor=by) for by in sorted(strides))]


def _key(entry: registry.Entry, values: Mapping[str, Any], specs: Mapping[str, Any], fixed: bool) -> Any:
    given = tuple((n, type(v), tuple(v) if isinstance(v, list) else v) for n, v in values.items())
    key = (entry.changes, given, tuple(specs.items()), fixed)
    try:
        hash(key)
    except TypeError:
        return None  # sizes that are symbols
    return key


# --- telling DTensor -----------------------------------------------------------------------------------------------


def introduce(entry: registry.Entry) -> None:
    """Let DTensor know of an operator."""
    op, dt = entry.op, dtensors.parts()
    if op.functional is None:
        name = entry.overload.name()
        _strategies[name] = untraced(_strategy(entry))
        dt.propagator.register_op_strategy(entry.overload, _strategies[name], _schema_info(op.signature))
    # What DTensor does not do: tensors by keyword, which it does not move, lists of tensors, and in-place forms. By the
    # operator's signature alone: what a process has called before must not tell.
    if op.functional is not None or _keyword_tensors(op.signature) or has_lists(op.signature) or not _falls_back():
        _give_rule(entry)


def changed(op: Op[..., Any]) -> None:
    """An operator's author has said more: DTensor asks anew for it and its gradients."""
    for entry in list(registry.by_overload.values()):
        if entry.op.home is op.home:
            introduce(entry)
    dtensors.forget_strategies()


def _schema_info(signature: Signature) -> Any:
    """What DTensor keeps its decisions by: every argument that is no tensor as well."""
    keywords = [p.name for p in signature.parameters if p.keyword_only]
    return dtensors.parts().SchemaInfo(0, keywords or None, needs_pytree=False)


def _keyword_tensors(signature: Signature) -> list[str]:
    return [p.name for p in signature.parameters if p.keyword_only and p.kind.is_tensor]


_strategies: dict[str, Any] = {}
"""The strategies by the overload's name."""
_rules: set[str] = set()
"""The overloads that have a rule in Python, by name."""
_watched: list[bool] = []


def _falls_back() -> bool:
    """Whether DTensor lets a strategy send a call to the operator's reference."""

    def run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return registry.by_overload[function.name()].op.run_reference(*args, **kwargs)

    with registry.lock:
        if not _watched:
            _watched.append(dtensors.fall_back(untraced(run), ByReference))
        return _watched[0]


def _give_rule(entry: registry.Entry) -> None:
    """Stand between DTensor and an operator, in Python."""
    name, kind = entry.overload.name(), dtensors.parts().DTensor

    def rule(cls: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        op, kwargs = entry.op, kwargs or {}
        _refuse_mixtures(op, op.signature.bind(args, kwargs))
        if op.functional is not None:
            return _in_place(op, args, kwargs)
        if has_lists(op.signature):
            return op.run_reference(*args, **kwargs)
        try:
            if any(isinstance(v, kind) for v in kwargs.values()):
                args, kwargs = _moved(entry, func, args, kwargs)
            return dtensors.dispatch(func, args, kwargs)
        except ByReference:
            return op.run_reference(*args, **kwargs)

    with registry.lock:
        if name not in _rules:
            _rules.add(name)
            private.torch_dispatch_rule(name, kind, untraced(rule))


def _refuse_mixtures(op: Op[..., Any], values: Mapping[str, Any]) -> None:
    """Raise for tensors on several meshes, and for plain ones of more than a number beside DTensors."""
    kind = dtensors.parts().DTensor
    meshes, plain = {}, None
    for name, value in values.items():
        for i, t in enumerate(tensors(value)):
            spelled = f"{name}[{i}]" if isinstance(value, (list, tuple)) else name
            if isinstance(t, kind):
                meshes[spelled] = t.device_mesh
            elif isinstance(t, Tensor) and t.numel() != 1:
                plain = plain or spelled
    if plain is not None and meshes:
        raise TypeError(f"{op.name}: {plain} is a plain tensor, and {next(iter(meshes))} a DTensor; make both DTensors")
    if meshes:
        _one_mesh(op, meshes)


def _in_place(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What the operator gives that is computed in place, written where the argument has it."""
    values = op.signature.bind(args, kwargs)
    assert op.functional is not None
    assert op.signature.returns_input is not None
    positional, named = op.functional.signature.encode(values)
    target = values[op.signature.returns_input]
    result = op.functional.overload(*positional, **named)
    target.copy_(result)


def _moved(entry: registry.Entry, func: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """The arguments where the best rule wants them."""
    op, dt = entry.op, dtensors.parts()
    schema = dt.dispatcher.unwrap_to_op_info(func, args, kwargs).schema
    made = _strategies[func.name()](dt.propagator._wrap_with_op_strategy(schema), fixed=False)
    best = min(made.strategies, key=lambda s: sum(c for costs in s.redistribute_cost for c in costs))
    values = op.signature.bind(args, kwargs)
    given = [p for p in op.signature.parameters if isinstance(values.get(p.name), Tensor)]
    for p, spec in zip(sorted(given, key=lambda p: p.keyword_only), best.input_specs, strict=True):
        t = values[p.name]  # a plain one has one element, and is whole everywhere
        if isinstance(t, dt.DTensor) and t.placements != spec.placements:
            with torch.no_grad():  # torch 2.11 would detach in place what requires a gradient, which DTensor cannot
                values[p.name] = t.detach().redistribute(t.device_mesh, spec.placements)
    positional = tuple(values[p.name] for p in op.signature.parameters if not p.keyword_only and p.name in values)
    return positional, {p.name: values[p.name] for p in op.signature.parameters if p.keyword_only}
