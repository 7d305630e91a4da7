"""A rule of sharding, tried out in one process: tensors cut as the rule says, the operator run on each device's pieces,
and its results put together again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import first_line, flat, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.pieces import OF_ANY, OF_GRADIENTS, cut, join
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.derive import shard
from opwright.kit.derive.roles import Gradient
from opwright.kit.dispatch import sharding, traced
from opwright.kit.dispatch.traced import Meta
from opwright.kit.op import Op
from opwright.kit.private import dtensors
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.shard import PARTIAL, REPLICATE, Misfit, Placement, Rule, Sharding
from opwright.kit.spec.sizes import Pattern
from opwright.kit.truth.oracle import Oracle, Results

MOST_PLACEMENTS = 6
"""Of an operator without rules that are tried for what its reference allows. Each takes some runs of the reference on
fake tensors."""


def metas(op: Op[..., Any], sample: Sample) -> dict[str, Any]:
    """The arguments of a call as rules are asked for: tensors by shape and dtype."""
    values = op.signature.bind(sample.args, sample.kwargs)
    return {n: Meta(tuple(v.shape), v.dtype) if isinstance(v, Tensor) else v for n, v in values.items()}


def rules(op: Op[..., Any], sample: Sample, pieces: int) -> list[Rule] | None:
    """The rules for a call that are declared or derived; None where there are none, and its reference may be asked."""
    return sharding.find(op, metas(op, sample), pieces=(pieces,)).rules


def carried(op: Op[..., Any], sample: Sample, pieces: int, rng: Any) -> list[Rule]:
    """The rules that the reference of an operator without others allows, for some placements of its tensors."""
    if op.random or any(p.mutated or (p.kind.is_list and p.kind.is_tensor) for p in op.signature.parameters):
        return []
    return list(_carried(op, metas(op, sample), pieces, rng))


def _carried(op: Op[..., Any], values: dict[str, Any], pieces: int, rng: Any) -> Iterator[Rule]:
    dt, mesh = dtensors.parts(), dtensors.backless_mesh(pieces)
    tensors = {n: v for n, v in values.items() if type(v) is Meta}
    choices: list[list[Placement]] = [[REPLICATE, *range(len(v.shape))] for v in tensors.values()]
    combinations = [c for c in itertools.product(*choices) if set(c) != {REPLICATE}]
    for chosen in rng.sample(combinations, min(len(combinations), MOST_PLACEMENTS)):
        placed = dict(zip(tensors, chosen, strict=True))
        specs = {}
        for name, where in placed.items():
            meta = torch.empty(tensors[name].shape, dtype=tensors[name].dtype, device="meta")
            placement = dt.Replicate() if where == REPLICATE else dt.Shard(where)
            specs[name] = dt.Spec(mesh, (placement,), tensor_meta=dt.Meta(meta.shape, meta.stride(), meta.dtype))
        found = sharding.find(op, values, specs, mesh)
        if found.source == "carried":
            outputs = tuple(_read(o[0]) if o is not None else REPLICATE for o in found.carried)
            cuts = [f"{name}{where}" for name, where in placed.items() if where != REPLICATE]
            yield Rule("+".join(cuts), placed, outputs)


def _read(placement: Any) -> Placement:
    if placement.is_shard():
        return int(placement.dim)
    if placement.is_replicate():
        return REPLICATE
    return PARTIAL if placement.reduce_op == "sum" else f"partial {placement.reduce_op}"


def prove(op: Op[..., Any], sample: Sample, rule: Rule, pieces: int, oracle: Oracle) -> None:
    """Raise Finding unless the pieces of a call, each run for itself, make the whole."""
    words = f"cut along {rule.dimension} into {pieces} ({_words(rule)})"
    known = shard.declared(op)
    said = known[1] if known is not None and known[1].communicates(rule) else None

    def run(device: int, name: str = "") -> Results:
        piece = piece_of(op, sample, rule, device, pieces)
        told = {} if said is None else {said.group: name, said.ranks: pieces}
        own = {n: value for n, value in told.items() if n in op.signature.names}
        values = {**op.signature.bind(piece.args, piece.kwargs), **own}
        try:
            with torch.no_grad():
                values |= _kept_by_sharing(op, values, told) if told else {}
                return flat(op(**values))
        except Exception as e:
            if _refuses_nothing(op, piece, rule):
                raise NotApplicable("it takes no piece without elements, and gets whole tensors then") from None
            raise Finding(f"{words}, it raised {type(e).__name__} for piece {device}: {first_line(e)}") from None

    if said is None:
        each = [run(device) for device in range(pieces)]
    else:
        with dtensors.simulated_ranks(pieces) as ranks:
            each = ranks(run)
    if _nothing_is_odd(op, sample, rule, pieces, each):
        raise NotApplicable("of a piece without elements it makes another shape, and gets whole tensors then")
    try:
        joined = [join([r[i] for r in each], where) for i, where in enumerate(rule.outputs)]
        if said is not None:  # results that only those who communicate have
            joined = [None if whole is None else j for j, whole in zip(joined, oracle.same, strict=True)]
            each = [[None if whole is None else t for t, whole in zip(r, oracle.same, strict=True)] for r in each]
        oracle.judge(joined)
        for device in range(1, pieces):  # what is said to be whole must be so everywhere
            same = [where == REPLICATE for where in rule.outputs]
            if any(same):
                oracle.judge([r if s else j for r, j, s in zip(each[device], joined, same, strict=True)])
    except Finding as f:
        f.message = f"{words}, {f.message}"
        raise


def _refuses_nothing(op: Op[..., Any], piece: Sample, rule: Rule) -> bool:
    """Whether a piece has no elements, and the operator says by its shapes alone that it does not take it: then no
    DTensors are cut so."""
    if not _is_empty(op, piece, rule):
        return False
    try:
        traced.results(op, metas(op, piece))
    except Exception:
        return True
    return False


def _is_empty(op: Op[..., Any], piece: Sample, rule: Rule) -> bool:
    shapes = metas(op, piece)
    cuts = [shapes[n].shape[w] for n, w in rule.inputs.items() if isinstance(w, int) and type(shapes.get(n)) is Meta]
    return bool(cuts) and not any(cuts)


def _nothing_is_odd(op: Op[..., Any], sample: Sample, rule: Rule, pieces: int, each: Sequence[Results]) -> bool:
    """Whether it is pieces without elements alone whose summands have another shape than the others', as the operator
    says by shapes: then no DTensors are cut so."""
    for i in (i for i, where in enumerate(rule.outputs) if where == PARTIAL):
        there = {device: t.shape for device, r in enumerate(each) if (t := r[i]) is not None}
        odd = [device for device, shape in there.items() if shape != there.get(0)]
        samples = [piece_of(op, sample, rule, device, pieces) for device in odd]
        if odd and all(_is_empty(op, s, rule) for s in samples):
            return all(
                traced.results(op, metas(op, s))[i] == tuple(there[d]) for d, s in zip(odd, samples, strict=True)
            )
    return False


def _kept_by_sharing(op: Op[..., Any], values: Mapping[str, Any], told: Mapping[Any, Any]) -> dict[str, Any]:
    """The results of an operator that only those who communicate have, which a gradient keeps: samples lack them."""
    role = op.role
    if not isinstance(role, Gradient):
        return {}
    rung, form = role.rung, role.of.saving_form or role.of
    missing = [n for n in rung.outputs if values.get(n) is None and values.get(rung.when.get(n, ""), True)]
    given = {n: v for n, v in {**values, **told}.items() if n in form.signature.names}
    results = flat(form(**given)) if missing else []
    return {n: results[rung.outputs[n]] for n in missing}


def _words(rule: Rule) -> str:
    ins = ", ".join(f"{n} {_word(w)}" for n, w in rule.inputs.items() if w != REPLICATE)
    return f"{ins or 'nothing'} -> {', '.join(map(_word, rule.outputs))}"


def _word(where: Placement) -> str:
    return where if isinstance(where, str) else f"in {where}"


def piece_of(op: Op[..., Any], sample: Sample, rule: Rule, device: int, pieces: int) -> Sample:
    """What a device has of a call."""
    names = [p.name for p in op.signature.parameters]
    weights = OF_GRADIENTS if op.is_gradient else OF_ANY

    def take(name: str, value: Any) -> Any:
        where = rule.inputs.get(name, REPLICATE)
        return cut(value, where, device, pieces, weights) if isinstance(value, Tensor) else value

    args = tuple(take(n, v) for n, v in zip(names, sample.args, strict=False))
    return Sample(args, {n: take(n, v) for n, v in sample.kwargs.items()})


# --- what is declared and was not proved ------------------------------------------------------------------------------


def _fitting(subject: Subject) -> Iterator[tuple[dict[str, Any], list[Rule] | Misfit]]:
    """The calls of all samples, with the rules that are declared for each, or why there are none."""
    op = subject.op
    assert op.spec.sharding is not None
    for index in range(subject.count):
        try:
            shapes = metas(op, subject.draw(Case(index, subject.main)))
        except NotApplicable:
            continue
        given = {n: v.shape for n, v in shapes.items() if type(v) is Meta}
        try:
            yield shapes, op.spec.sharding.rules(given)
        except Misfit as e:
            yield shapes, e


def refuse_unused(subject: Subject) -> None:
    """Raise Finding where a declaration fits no sample: it would be used for no call."""
    found = [rules for _, rules in _fitting(subject)]
    if not found:
        raise NotApplicable("there are no samples")
    if all(isinstance(rules, Misfit) for rules in found):
        raise Finding(f"no sample fits what shard declares: {found[0]}")


def never_cut(subject: Subject) -> list[str]:
    """The dimensions along which nothing was cut, since no sample has more than one element there, and the tensors that
    none gives."""
    op = subject.op
    if op.spec.sharding is None:
        return []
    sizes: dict[str, int] = {}
    given: set[str] = set()
    for shapes, rules in _fitting(subject):
        given |= {n for n, v in shapes.items() if type(v) is Meta} if isinstance(rules, list) else set()
        for rule in rules if isinstance(rules, list) else []:
            name = rule.dimension.partition("[")[0]
            here = [shapes[n].shape[w] for n, w in rule.inputs.items() if isinstance(w, int)]
            sizes[name] = max([sizes.get(name, 0), *here])
    never = [name for name in op.spec.sharding.inputs if given and name not in given]
    return [
        *(
            f"{op.name}: {name} was never really cut: no sample has more than one element along it"
            for name, size in sizes.items()
            if size < 2
        ),
        *(f"{op.name}: what shard says of {name} was never tried: no sample gives it" for name in never),
    ]


# --- what could be declared -----------------------------------------------------------------------------------------


def could_be_declared(subject: Subject) -> list[str]:
    """Dimensions along which the pieces of all samples make the whole, and of which the author says nothing. That they
    did is a hint: nothing is registered for it."""
    op = subject.op
    declared = op.spec.sharding
    if op.home is not op or (declared is None and not op.kernels):
        return []
    if declared is None and sharding.find(op, _first(subject)).rules is not None:
        return []  # all of them follow
    known = dict(declared.inputs) if declared is not None else _patterns(op)
    names = list(dict.fromkeys(n for p in known.values() for d in p.dimensions for n in d.names))
    found = []
    for name in (n for n in names if declared is None or n not in declared.over):
        how = next((how for how, rule in _guesses(op, name, declared) if _holds(subject, name, known, rule)), None)
        if how is not None:
            found.append(f"{op.name}: {name} could be cut as well: {how}")
    return found


def _first(subject: Subject) -> dict[str, Any]:
    for index in range(subject.count):
        try:
            return metas(subject.op, subject.draw(Case(index, subject.main)))
        except NotApplicable:
            continue
    return {}


def _patterns(op: Op[..., Any]) -> dict[str, Pattern]:
    return next((dict(k.domain.patterns) for k in op.kernels if k.domain.patterns), {})


Guess = tuple[str, Callable[[Results], tuple[Placement, ...]]]


def _guesses(op: Op[..., Any], name: str, declared: Sharding | None) -> Iterator[Guess]:
    """What may become of the results: cut where the declaration has the dimension, or anywhere; or summands."""

    def from_end(places: Sequence[int]) -> Callable[[Results], tuple[Placement, ...]]:
        return lambda results: tuple(
            REPLICATE if r is None else r.dim() - back for r, back in zip(results, places, strict=True)
        )

    if declared is not None:
        outputs = declared.outputs[: len(op.signature.outputs)]
        there = [[i for i, d in enumerate(p.dimensions) if d.text == name] for p in outputs]
        if all(there):
            places = [len(p.dimensions) - at[0] for p, at in zip(outputs, there, strict=True)]
            yield f'over="{" ".join((*declared.over, name))}"', from_end(places)
        if not any(there):
            yield f'sums="{" ".join((*declared.sums, name))}"', lambda results: (PARTIAL,) * len(results)
    elif len(op.signature.outputs) == 1:
        for place in range(1, 5):
            words = f"declare it with {op.name}.shard(…), its result having it {place} from the end"
            yield words, from_end([place])
        yield f'declare it with {op.name}.shard(…, sums="{name}")', lambda results: (PARTIAL,) * len(results)


def _holds(
    subject: Subject, name: str, known: Mapping[str, Pattern], place: Callable[[Results], tuple[Placement, ...]]
) -> bool:
    """Whether a guess is right for all samples, in two pieces and in three; at least one has something to cut."""
    op, tried = subject.op, 0
    for index in range(subject.count):
        try:
            sample = subject.draw(Case(index, subject.main))
            oracle = Oracle(reference_of(op), sample, subject.seed)
            shapes = {n: v.shape for n, v in metas(op, sample).items() if type(v) is Meta}
            inputs = _cut_inputs(name, known, shapes)
            outputs = place(oracle.same)
            if inputs is None or any(isinstance(o, int) and o < 0 for o in outputs):
                return False
            sizes = [shapes[n][w] for n, w in inputs.items() if isinstance(w, int)]
            for pieces in (2, 3):
                prove(op, sample, Rule(name, inputs, outputs), pieces, oracle)
        except NotApplicable:
            continue
        except Exception:
            return False
        tried += any(size > 2 for size in sizes) and any(t is not None and t.numel() for t in oracle.same)
    return tried > 0


def _cut_inputs(
    name: str, known: Mapping[str, Pattern], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Placement] | None:
    inputs: dict[str, Placement] = {}
    for tensor, shape in shapes.items():
        dimensions = known[tensor].dimensions if tensor in known else ()
        places = [i for i, d in enumerate(dimensions) if name in d.names]
        if len(places) > 1 or any(dimensions[i].text != name for i in places):
            return None
        inputs[tensor] = len(shape) - len(dimensions) + places[0] if places else REPLICATE
    return inputs if any(isinstance(w, int) for w in inputs.values()) else None
