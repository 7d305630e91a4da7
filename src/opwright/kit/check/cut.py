"""A rule of sharding, tried out in one process: tensors cut as the rule says, the operator run on each device's pieces,
and its results put together again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.check.calls import first_line, flat, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.derive import shard
from opwright.kit.dispatch import carry, sharding
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.shard import PARTIAL, REPLICATE, Placement, Rule, Sharding
from opwright.kit.spec.sizes import Pattern
from opwright.kit.truth.oracle import Oracle, Results

MOST_PLACEMENTS = 6
"""Of an operator without rules that are tried for what its reference allows. Each takes some runs of the reference on
fake tensors."""


def metas(op: Op[..., Any], sample: Sample) -> dict[str, Any]:
    """The arguments of a call as rules are asked for: tensors by shape and dtype."""
    values = op.signature.bind(sample.args, sample.kwargs)
    return {n: carry.Meta(tuple(v.shape), v.dtype) if isinstance(v, Tensor) else v for n, v in values.items()}


def rules(op: Op[..., Any], sample: Sample) -> list[Rule] | None:
    """The rules for a call that are declared or derived; None where there are none, and its reference may be asked."""
    return sharding.find(op, metas(op, sample)).rules


def carried(op: Op[..., Any], sample: Sample, pieces: int, rng: Any) -> list[Rule]:
    """The rules that the reference of an operator without others allows, for some placements of its tensors."""
    if op.random or any(p.mutated or (p.kind.is_list and p.kind.is_tensor) for p in op.signature.parameters):
        return []
    return list(_carried(op, metas(op, sample), pieces, rng))


def _carried(op: Op[..., Any], values: dict[str, Any], pieces: int, rng: Any) -> Iterator[Rule]:
    dt, mesh = private.dtensor(), private.backless_mesh(pieces)
    tensors = {n: v for n, v in values.items() if type(v) is carry.Meta}
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
    return REPLICATE if placement.is_replicate() else PARTIAL


def prove(op: Op[..., Any], sample: Sample, rule: Rule, pieces: int, oracle: Oracle) -> None:
    """Raise Finding unless the pieces of a call, each run for itself, make the whole."""
    words = f"cut along {rule.dimension} into {pieces} ({_words(rule)})"
    known = shard.declared(op)
    group = None if known is None else known[1].group

    def run(device: int, name: str = "") -> Results:
        piece = piece_of(op, sample, rule, device, pieces)
        own = {group: name} if group is not None and group in op.signature.names else {}
        values = {**op.signature.bind(piece.args, piece.kwargs), **own}
        try:
            with torch.no_grad():
                return flat(op(**values))
        except Exception as e:
            raise Finding(f"{words}, it raised {type(e).__name__} for piece {device}: {first_line(e)}") from None

    if group is None:
        each = [run(device) for device in range(pieces)]
    else:
        with private.simulated_ranks(pieces) as ranks:
            each = ranks(run)
    try:
        joined = [join([r[i] for r in each], where) for i, where in enumerate(rule.outputs)]
        oracle.judge(joined)
        for device in range(1, pieces):  # what is said to be whole must be so everywhere
            same = [where == REPLICATE for where in rule.outputs]
            if any(same):
                oracle.judge([r if s else j for r, j, s in zip(each[device], joined, same, strict=True)])
    except Finding as f:
        f.message = f"{words}, {f.message}"
        raise


def _words(rule: Rule) -> str:
    ins = ", ".join(f"{n} {_word(w)}" for n, w in rule.inputs.items() if w != REPLICATE)
    return f"{ins or 'nothing'} -> {', '.join(map(_word, rule.outputs))}"


def _word(where: Placement) -> str:
    return where if isinstance(where, str) else f"in {where}"


def piece_of(op: Op[..., Any], sample: Sample, rule: Rule, device: int, pieces: int) -> Sample:
    """What a device has of a call."""
    names = [p.name for p in op.signature.parameters]

    def take(name: str, value: Any) -> Any:
        return cut(value, rule.inputs.get(name, REPLICATE), device, pieces) if isinstance(value, Tensor) else value

    args = tuple(take(n, v) for n, v in zip(names, sample.args, strict=False))
    return Sample(args, {n: take(n, v) for n, v in sample.kwargs.items()})


def cut(t: Tensor, where: Placement, device: int, pieces: int) -> Tensor:
    """A device's piece of a tensor, in the sizes that DTensor gives them: the last may be smaller, or empty."""
    if where == REPLICATE:
        return t
    if isinstance(where, str):  # summands that differ, so that no average passes for a sum
        weights = [2.0**-k for k in range(1, pieces)]
        return t * [*weights, 1 - sum(weights)][device]
    each = -(-t.shape[where] // pieces)
    start = min(device * each, t.shape[where])
    return t.narrow(where, start, min(each, t.shape[where] - start))


def join(pieces: Sequence[Tensor | None], where: Placement) -> Tensor | None:
    """The whole that pieces are pieces of."""
    there = [p for p in pieces if p is not None]
    if not there:
        return None
    if where == REPLICATE:
        return there[0]
    if where == PARTIAL:
        wide = torch.complex128 if there[0].is_complex() else torch.float64
        exact = there[0].is_floating_point() or there[0].is_complex()
        return sum((p.to(wide) for p in there[1:]), there[0].to(wide)).to(there[0].dtype) if exact else sum(there)  # type: ignore[return-value]
    assert isinstance(where, int)
    try:
        return torch.cat(there, where)
    except (RuntimeError, IndexError):
        shapes = ", ".join(str(tuple(p.shape)) for p in there)
        raise Finding(f"results of shapes {shapes} are no pieces along {where}") from None


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
            shapes = {n: v.shape for n, v in metas(op, sample).items() if type(v) is carry.Meta}
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
