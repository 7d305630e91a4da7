"""Operators on DTensors: each device runs the kernel on its own pieces, where a rule says that it may.

Rules come from what an operator's author declares, from the operator that it is the gradient of, or from its reference
(carry.py). Where there is none, PyTorch runs the reference step by step, and moves what a step needs. Nothing here
imports torch.distributed: when somebody does, DTensor is told of the operators.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from opwright.kit import private
from opwright.kit.derive import shard
from opwright.kit.derive.roles import Gradient
from opwright.kit.dispatch import carry, registry
from opwright.kit.dispatch.imported import when_imported
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.shard import PARTIAL, REPLICATE, Placement, Rule, Sharding, elementwise

if TYPE_CHECKING:
    from opwright.kit.op import Op

MODULE = registry.DISTRIBUTED
Source = Literal["declared", "derived", "carried", "reference", "replicates"]
"""The last two: PyTorch runs the reference step by step; every device gets the whole of all tensors."""


class Found(NamedTuple):
    """The rules of an operator for one call, and where they come from."""

    source: Source
    why: str
    rules: list[Rule] | None = None
    """None: none but that all tensors are replicated, or that of `carried`."""
    carried: tuple[Any, ...] = ()
    """The placements of the results for those that the call has, on the whole mesh."""


# --- which rules there are -----------------------------------------------------------------------------------------


def find(
    op: Op[..., Any], values: Mapping[str, Any], specs: Mapping[str, Any] | None = None, mesh: Any = None
) -> Found:
    """The rules for a call whose tensors are `carry.Meta`; with DTensorSpecs of them, those that can be carried too."""
    shapes = {n: v.shape for n, v in values.items() if type(v) is carry.Meta}
    known = shard.declared(op)
    if known is not None:
        author, sharding = known
        own = "" if author is op else f", as {author.name} has it" + ", transposed" * op.is_gradient
        try:
            rules = shard.rules(op, author, sharding, shapes, _results(op, values, shapes, author))
        except carry.Unclear as e:
            return Found("replicates", f"an input of {author.name} is not kept, and {e}")
        return Found("declared", f"{sharding.says}{own}", rules)
    if op.random:
        return Found("reference", "it draws random numbers, and each device would draw others")
    if any(p.mutated for p in op.signature.parameters):
        return Found("reference", "it writes to its arguments")
    if _has_lists(op.signature):
        return Found("reference", "it takes or returns a list of tensors")
    try:
        below = _elementwise(op, values)
        if below is not None:
            rules = shard.rules(op, *below, shapes, _results(op, values, shapes, below[0]))
            return Found("derived", "it takes each element by itself", rules)
        if specs is not None:
            out = carry.placements(op, values, specs, mesh)
            return Found("carried", "its reference takes the pieces through every step", None, tuple(out))
    except carry.Moves as e:
        return Found("reference", str(e))
    except carry.Unclear as e:
        return Found("replicates", str(e))
    return Found("reference", "no dimension is declared, and it takes more than an element at a time")


def of_call(op: Op[..., Any], values: Mapping[str, Any]) -> Found | None:
    """The rules for a call with DTensors; None: it has none."""
    if MODULE not in sys.modules:
        return None
    kind = private.dtensor().DTensor
    specs = {n: v._spec for n, v in values.items() if isinstance(v, kind)}
    if not specs:
        return None
    if op.functional is not None:
        plain = dict(zip(op.functional.signature.names, values.values(), strict=True))
        return of_call(op.functional, plain)
    if not op.opaque:
        return Found("reference", "PyTorch sees through an operator without kernels")
    metas = {n: carry.Meta(tuple(v.shape), v.dtype) if n in specs else v for n, v in values.items()}
    return find(op, metas, specs, next(iter(specs.values())).mesh)


def _elementwise(op: Op[..., Any], values: Mapping[str, Any]) -> tuple[Op[..., Any], Sharding] | None:
    """The operator that takes each element by itself, and its sharding: this one or that whose gradient it is."""
    role = op.role
    if isinstance(role, Gradient) and shard.base(op) is not None and not role.takes_caches:
        called = _call_below(role, values)
        found = None if called is None else _elementwise(role.of, called)
        if found is not None:
            return found
    if not carry.is_elementwise(op, values):
        return None
    return op, elementwise([p.name for p in op.signature.parameters if p.kind.is_tensor], len(op.signature.outputs))


def _call_below(role: Gradient, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The call of the operator below, as far as its gradient's call tells; None where it does not."""
    below, given = role.of, dict(values)
    grads = [v for n in role.rung.grads if type(v := values.get(n)) is carry.Meta]
    for p in below.signature.parameters:
        if p.name in role.rung.inputs:
            continue
        given.pop(p.name, None)
        if p.kind.schema != "Tensor" or not grads or sum(q.kind.is_tensor for q in below.signature.parameters) > 1:
            return None
        given[p.name] = grads[0]  # the one tensor of an operator that takes each element by itself
    return {p.name: given[p.name] for p in below.signature.parameters if p.name in given}


def _results(
    op: Op[..., Any], values: Mapping[str, Any], shapes: Mapping[str, Any], author: Op[..., Any]
) -> Sequence[Any]:
    """The shapes of a gradient's results, where one is of an input that was not kept: they tell where that was cut."""
    role = op.role
    if op is author or not isinstance(role, Gradient):
        return ()
    if all(p.name in shapes for p in role.of.signature.differentiable_inputs):
        return ()
    traced = carry.trace(op, values)
    return [None if o is None else traced.shapes[o] for o in traced.outputs]


# --- what DTensor asks ---------------------------------------------------------------------------------------------


def _values(op: Op[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, tensors as `carry.Meta`."""
    dt = private.dtensor()

    def read(value: Any) -> Any:
        spec = value.strategies[0].output_spec if isinstance(value, dt.OpStrategy) else value
        meta = spec.tensor_meta if isinstance(spec, dt.Spec) else spec
        return carry.Meta(tuple(meta.shape), meta.dtype) if isinstance(meta, dt.Meta) else value

    return {n: read(v) for n, v in op.signature.bind(tuple(args), dict(kwargs)).items()}


def _rows(op: Op[..., Any], values: Mapping[str, Any], rules: Sequence[Rule], present: Sequence[str], cut: Any) -> Any:
    """Rules as DTensor takes them: placements of the results, then of the tensors that are given."""
    dt = private.dtensor()

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
        return carry.absent(op, values) if any(o.kind.is_optional for o in op.signature.outputs) else set()
    mask = values.get(role.rung.wanted)
    absent = {i for i, wanted in enumerate(mask or ()) if not wanted}
    for i, p in enumerate(role.of.signature.differentiable_inputs):
        given = values.get(p.name)
        counted = type(given) is carry.Meta and not (given.dtype.is_floating_point or given.dtype.is_complex)
        if p.name in role.rung.inputs and (given is None or counted):
            absent.add(i)
    return absent


def _whole(op: Op[..., Any]) -> Rule:
    return Rule("nothing", {}, (REPLICATE,) * len(op.signature.outputs))


def _present(op: Op[..., Any], values: Mapping[str, Any]) -> list[str]:
    """The tensors that are given, positional ones first."""
    given = [p for p in op.signature.parameters if type(values.get(p.name)) is carry.Meta]
    return [p.name for p in sorted(given, key=lambda p: p.keyword_only)]


def _by_dimension(entry: registry.Entry) -> Any:
    """A strategy for one dimension of a mesh, as newer versions of PyTorch take them."""

    def strategy(overload: Any, args: Any, kwargs: Any) -> Any:
        op = entry.op
        values = _values(op, args, kwargs)
        found = find(op, values)
        rules = [_whole(op), *(found.rules or [])]
        return _rows(op, values, rules, _present(op, values), private.dtensor().Placeholder)

    return strategy


def _by_mesh(entry: registry.Entry) -> Any:
    """A strategy for a whole mesh: of operators whose rules depend on where their tensors are."""
    memo: dict[Any, Found] = {}

    def strategy(schema: Any, *, fixed: bool = True) -> Any:
        op, dt = entry.op, private.dtensor()
        values = _values(op, schema.args_schema, schema.kwargs_schema)
        given = op.signature.bind(tuple(schema.args_schema), dict(schema.kwargs_schema))
        specs = {n: given[n].strategies[0].output_spec for n, v in values.items() if type(v) is carry.Meta}
        mesh = next(iter(specs.values())).mesh
        strange = next((n for n, s in specs.items() if s.mesh != mesh), None)
        if strange is not None:
            raise ValueError(f"{op.name}: {strange} is on {specs[strange].mesh}, and the others on {mesh}")
        values |= {n: values[n]._replace(device=mesh.device_type) for n in specs}
        key = _key(entry, values, specs)
        found = memo.get(key) if key is not None else None
        if found is None:
            found = find(op, values, specs, mesh)
            if key is not None:
                memo[key] = found
        if found.source == "derived":
            _take_rule_away(entry)
        if found.source == "reference" and _give_rule(entry):
            raise NotImplementedError(f"{op.name}: {found.why}")  # which the rule knows what to do about
        present = _present(op, values)
        if found.source == "carried":
            whole = [dt.Spec(mesh, p) if p is not None else None for p in found.carried]
            outs = whole[0] if len(whole) == 1 else tuple(whole)
            costs = [[0.0]] * len(present)
            return dt.OpStrategy([dt.OpSpec(outs, tuple(specs[n] for n in present), costs)])
        rules = [_whole(op), *(found.rules or [])]
        rows = [row for build in _cuts(specs.values()) for row in _rows(op, values, rules, present, build)]
        made = dt.expand(mesh, schema, rows, input_index=len(op.signature.outputs))
        keywords = {i: specs[n].placements for i, n in enumerate(present) if op.signature.names[n].keyword_only}
        if fixed and keywords:  # nobody moves those: a rule that wants them elsewhere would be broken in silence
            made.strategies = [
                s for s in made.strategies if all(s.input_specs[i].placements == p for i, p in keywords.items())
            ]
        return made

    return strategy


def _cuts(specs: Any) -> list[Any]:
    """What makes a cut along a dimension: plain ones, and in the strides that the tensors have."""
    dt = private.dtensor()
    strides = {p.split_factor for s in specs for p in s.placements if isinstance(p, dt.StridedShard)}
    return [dt.Shard, *(lambda dim, by=by: dt.StridedShard(dim, split_factor=by) for by in sorted(strides))]


def _key(entry: registry.Entry, values: Mapping[str, Any], specs: Mapping[str, Any]) -> Any:
    given = tuple((n, tuple(v) if isinstance(v, list) else v) for n, v in values.items())
    key = (entry.changes, given, tuple(specs.items()))
    try:
        hash(key)
    except TypeError:
        return None  # sizes that are symbols
    return key


# --- telling DTensor -----------------------------------------------------------------------------------------------


def introduce(entry: registry.Entry) -> None:
    """Let DTensor know of an operator, if anybody here uses DTensor."""
    if MODULE not in sys.modules or not hasattr(sys.modules[MODULE], "DTensor"):
        return
    op, dt = entry.op, private.dtensor()
    if op.functional is not None:
        _give_rule(entry)
        return
    info = _schema_info(op.signature)
    # Data that are passed by keyword DTensor does not move: where the others go depends on where those are.
    plain = shard.declared(op) is not None and not _keyword_tensors(op.signature)
    propagator = dt.propagator
    if plain and dt.SingleDim is not None:
        propagator.register_single_dim_op_strategy(entry.overload, dt.SingleDim(_by_dimension(entry)), info)
    else:
        getattr(propagator, "op_single_dim_strategy_funcs", {}).pop(entry.overload, None)
        _strategies[entry.overload.name()] = _by_mesh(entry)
        propagator.register_op_strategy(entry.overload, _strategies[entry.overload.name()], info)
    if plain:
        _take_rule_away(entry)
    else:
        _give_rule(entry)


def changed(op: Op[..., Any]) -> None:
    """An operator's author has said more: DTensor asks anew for it and its gradients."""
    if MODULE not in sys.modules:
        return
    for entry in list(registry.by_overload.values()):
        if entry.op.home is op.home:
            introduce(entry)
    private.forget_strategies()


def _schema_info(signature: Signature) -> Any:
    """What DTensor keeps its decisions by: every argument that is no tensor as well."""
    keywords = [p.name for p in signature.parameters if p.keyword_only]
    return private.dtensor().SchemaInfo(0, keywords or None, needs_pytree=False)


def _has_lists(signature: Signature) -> bool:
    """Whether an operator takes or returns lists of tensors, of which there are no rules."""
    kinds = [p.kind for p in signature.parameters] + [o.kind for o in signature.outputs]
    return any(kind.is_list and kind.is_tensor for kind in kinds)


def _keyword_tensors(signature: Signature) -> list[str]:
    return [p.name for p in signature.parameters if p.keyword_only and p.kind.is_tensor]


_strategies: dict[str, Any] = {}
"""The strategies for whole meshes, by the overload's name."""
_rules: dict[str, Any] = {}
"""What takes away the rules that are in Python, by the overload's name."""


def _take_rule_away(entry: registry.Entry) -> None:
    """DTensor serves the operator without us from now on, in C++ where it has seen a call before."""
    if _keyword_tensors(entry.op.signature):
        return
    with registry.lock:
        destroy = _rules.pop(entry.overload.name(), None)
    if destroy is not None:
        destroy()


def _give_rule(entry: registry.Entry) -> bool:
    """Stand between DTensor and an operator; whether that was so before. An operator that took each element by itself
    in other calls gets the rule back, and in this one call whole tensors."""
    name, kind = entry.overload.name(), private.dtensor().DTensor

    def rule(cls: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        if entry.op.functional is not None:
            return _in_place(entry.op, args, kwargs)
        if _has_lists(entry.op.signature):
            return entry.op.run_reference(*args, **kwargs)
        try:
            if any(isinstance(v, kind) for v in kwargs.values()):
                args, kwargs = _moved(entry, func, args, kwargs)
            return private.dispatch_dtensor(func, args, kwargs)
        except NotImplementedError:
            return entry.op.run_reference(*args, **kwargs)

    with registry.lock:
        there = name in _rules
        if not there:
            _rules[name] = private.torch_dispatch_rule(name, kind, rule)
    return there


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
    op, dt = entry.op, private.dtensor()
    schema = dt.dispatcher.unwrap_to_op_info(func, args, kwargs).schema
    made = _strategies[func.name()](dt.propagator._wrap_with_op_strategy(schema), fixed=False)
    best = min(made.strategies, key=lambda s: sum(c for costs in s.redistribute_cost for c in costs))
    values = op.signature.bind(args, kwargs)
    given = [p for p in op.signature.parameters if isinstance(values.get(p.name), dt.DTensor)]
    for p, spec in zip(sorted(given, key=lambda p: p.keyword_only), best.input_specs, strict=True):
        t = values[p.name]
        if t.placements != spec.placements:
            with torch.no_grad():
                values[p.name] = t.redistribute(t.device_mesh, spec.placements)
    positional = tuple(values[p.name] for p in op.signature.parameters if not p.keyword_only and p.name in values)
    return positional, {p.name: values[p.name] for p in op.signature.parameters if p.keyword_only}


def watch() -> None:
    """Let DTensor know of all operators, as soon as somebody imports it."""

    def tell(module: Any) -> None:
        for entry in list(registry.by_overload.values()):
            introduce(entry)

    when_imported(MODULE, tell)
