"""Placements carried through a reference: whether every device may run an operator on its own pieces.

The reference is run on fake tensors, of the whole call and of what each device has of it. Where PyTorch's own rules
take the pieces through each step without moving any, and each device's run does exactly what its part of the whole
does, the operator itself may run on the pieces, kernel and all. Where they must move, PyTorch may run the reference
step by step; that is rehearsed before, on fake pieces of every device, so that no rule of PyTorch's that is wrong for a
piece gives wrong numbers, or stops one device alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import private
from opwright.kit.dispatch.traced import Meta, Moves, Number, Step, Trace, Unclear, same, trace
from opwright.kit.private import dtensors, tree_flatten, tree_map
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

OWN_WAY = "PyTorch shards {}, a step of its reference, in a way of its own"


def placements(op: Op[..., Any], values: Mapping[str, Any], specs: Mapping[str, Any], mesh: Any) -> list[Any]:
    """The placements of an operator's results where its tensors are placed as these DTensorSpecs say; None for a result
    that is absent. Moves where PyTorch would have to move data, Unclear where there is no telling."""
    if any(type(n) is not int for v in values.values() if type(v) is Meta for n in v.shape):
        raise Unclear("what PyTorch would do with it is not rehearsed for sizes that are symbols")
    here = trace(op, values)
    try:
        return _carried(op, here, values, specs, mesh)
    except Moves:
        _rehearse(here, specs, mesh)
        raise


def _carried(
    op: Op[..., Any], here: Trace, values: Mapping[str, Any], specs: Mapping[str, Any], mesh: Any
) -> list[Any]:
    dt = dtensors.parts()
    if any(isinstance(p, dt.StridedShard) for spec in specs.values() for p in spec.placements):
        raise Moves("it is cut in strides")
    known: dict[int, Any] = {here.inputs[name]: spec for name, spec in specs.items()}
    pieces = list(_pieces(op, values, specs, mesh))
    for index, step in enumerate(here.steps):
        _, moved = _propagate(here, step, known, mesh)
        _refuse_handled(step, known, moved)
        if moved:
            raise Moves(f"{step.function}, a step of its reference, needs more than each device has")
        for coordinate, piece in pieces:
            _compare(here, piece, index, known, mesh, coordinate)
    for _, piece in pieces:
        if len(piece.steps) != len(here.steps) or piece.outputs != here.outputs:
            raise Moves("its reference does something else for a piece than for the whole")
    whole = (dt.Replicate(),) * mesh.ndim
    found = [None if o is None else known[o].placements if o in known else whole for o in here.outputs]
    if any(p.is_partial() and type(p) is not dt.Partial for each in found if each is not None for p in each):
        raise Moves("PyTorch joins its result in a way of its own")
    return found


def _propagate(here: Trace, step: Step, known: dict[int, Any], mesh: Any) -> tuple[Any, bool]:
    """Let PyTorch say where the results of a step are: its answer (None: the step takes no tensors), and whether
    something must be moved for it."""
    mine = step.numbers()
    spelled = str(step.function)
    if not any(n in known for n in mine):
        for number in step.results:
            known[number] = _replicated(here.metas[number], mesh)  # made of nothing, the same on every device
        return None, False
    for number in mine:
        if number not in known:
            raise Unclear(f"{spelled} takes a tensor that comes from nowhere")
    found, there, moved, taken = _asked(step.function, step.arguments, known)
    if len(there) != len(step.results):
        raise Unclear(f"PyTorch says too little about {spelled}, a step of its reference")
    counted = _from_the_front(here, step)
    if counted is not None:
        _, others, *also = _asked(step.function, counted, known)
        if ([s.placements for s in there], moved, taken) != ([s.placements for s in others], *also):
            raise Unclear(
                f"PyTorch's rule for {spelled}, a step of its reference, is another for the same dimension counted "
                "from the end"
            )
    known.update(zip(step.results, there, strict=True))
    return found, moved


def _asked(function: Any, arguments: Any, known: Mapping[int, Any]) -> tuple[Any, list[Any], bool, list[Any]]:
    """What PyTorch says of a step: its answer, where the results are, whether something must be moved for it, and where
    it wants the tensors that the step takes."""
    dt = dtensors.parts()
    args, kwargs = tree_map(lambda v: known[v] if isinstance(v, Number) else v, arguments)
    info = dt.propagator.op_to_schema_info.get(function) or getattr(
        dt.propagator, "op_to_schema_info_for_single_dim_strategy", {}
    ).get(function)
    schema = dt.OpSchema(function, tuple(args), dict(kwargs), schema_info=info)
    try:
        found = dt.propagator.propagate_op_sharding_non_cached(schema)
    except NotImplementedError:
        raise Unclear(f"PyTorch has no rule for {function}, a step of its reference") from None
    except Exception as e:
        raise Unclear(f"PyTorch cannot shard {function}, a step of its reference ({type(e).__name__})") from None
    specs = list(tree_flatten(found.output_spec, is_leaf=lambda v: isinstance(v, dt.Spec))[0])
    before = [spec.placements for spec in schema.args_spec]
    wanted = found.redistribute_schema if found.needs_redistribute else None
    taken = before if wanted is None else [spec.placements for spec in wanted.args_spec]
    moved = any(a != b for a, b in zip(before, taken, strict=False))
    return found, [s for s in specs if s is not None], moved, taken


def _from_the_front(here: Trace, step: Step) -> Any:
    """The arguments of a step with the dimensions that they count from the end counted from the front; None where
    there are none. Not all of PyTorch's rules know that these are the same."""
    rank = max(len(here.metas[n].shape) for n in (*step.numbers(), *step.results))
    names = [a.name for a in step.function._schema.arguments]
    args, kwargs = step.arguments

    def counted(name: str, value: Any) -> Any:
        if name not in ("dim", "dims"):
            return value
        if isinstance(value, (list, tuple)):
            return [counted("dim", v) for v in value]
        return value + rank if type(value) is int and value < 0 else value

    fresh = (
        [counted(name, value) for name, value in zip(names, args, strict=False)],
        {name: counted(name, value) for name, value in kwargs.items()},
    )
    return None if same((list(args), kwargs), fresh) else fresh


def _replicated(meta: Meta, mesh: Any) -> Any:
    dt = dtensors.parts()
    like = torch.empty(meta.shape, dtype=meta.dtype, device="meta")
    return dt.Spec(mesh, (dt.Replicate(),) * mesh.ndim, tensor_meta=dt.Meta(like.shape, like.stride(), like.dtype))


def coordinates(mesh: Any) -> Iterator[tuple[int, ...]]:
    """The places of all devices in a mesh."""
    return itertools.product(*(range(mesh.size(i)) for i in range(mesh.ndim)))


def _pieces(
    op: Op[..., Any], values: Mapping[str, Any], specs: Mapping[str, Any], mesh: Any
) -> Iterator[tuple[tuple[int, ...], Trace]]:
    """A run of the reference on what a device has, for each kind of device; with the coordinate of one."""
    for coordinate, given in kinds_of_pieces(values, specs, mesh):
        try:
            yield coordinate, trace(op, given)
        except Unclear:
            raise Moves("its reference takes the whole and not a piece of it") from None


def kinds_of_pieces(
    values: Mapping[str, Any], specs: Mapping[str, Any], mesh: Any
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """What devices have of a call, once for each kind; with the coordinate of one that has it."""
    met = set()
    for coordinate in coordinates(mesh):
        local = {n: cut(values[n].shape, s.placements, mesh, coordinate) for n, s in specs.items()}
        key = tuple(local.items())
        if key not in met:
            met.add(key)
            yield coordinate, {n: v._replace(shape=local[n]) if n in local else v for n, v in values.items()}


def cut(shape: Sequence[int], placements: Sequence[Any], mesh: Any, coordinate: Sequence[int]) -> tuple[int, ...]:
    """The shape of a device's piece of a tensor, by the device's place in the mesh."""
    sizes, strided = list(shape), dtensors.parts().StridedShard
    for axis, placement in enumerate(placements):
        if isinstance(placement, strided) and sizes[placement.dim] % (mesh.size(axis) * placement.split_factor):
            raise Unclear("it is cut in strides of uneven length")
        if placement.is_shard() or isinstance(placement, strided):
            each = -(-sizes[placement.dim] // mesh.size(axis))
            sizes[placement.dim] = max(0, min(each, sizes[placement.dim] - coordinate[axis] * each))
    return tuple(sizes)


def _compare(
    whole: Trace, piece: Trace, index: int, known: Mapping[int, Any], mesh: Any, coordinate: tuple[int, ...]
) -> None:
    """Raise unless a device's step does its part of the whole step."""
    step = whole.steps[index]
    if index >= len(piece.steps) or piece.steps[index].function is not step.function:
        raise Moves("its reference does something else for a piece than for the whole")
    mine = piece.steps[index]
    if not same(step.arguments, mine.arguments):  # else than in sizes that PyTorch would put there too
        sized = _sized(step.function)
        blank = [[None if i in sized else v for i, v in enumerate(s.arguments[0])] for s in (step, mine)]
        if not (sized and same((blank[0], step.arguments[1]), (blank[1], mine.arguments[1]))):
            raise Moves(f"{step.function}, a step of its reference, takes a number that depends on the whole's size")
    for number, shape, local in zip(step.results, step.shapes, mine.shapes, strict=True):
        if cut(shape, known[number].placements, mesh, coordinate) != local:
            raise Moves(f"{step.function}, a step of its reference, gives other shapes for a piece than for the whole")


def _sized(function: Any) -> tuple[int, ...]:
    """The arguments of a function that are sizes of its result, which DTensor makes those of the piece."""
    places = dtensors.parts().propagator.op_to_shape_and_stride_idx.get(function)
    return () if places is None else places if isinstance(places, tuple) else (places,)


# --- rehearsing what PyTorch would do, step by step ----------------------------------------------------------------


def _rehearse(here: Trace, specs: Mapping[str, Any], mesh: Any) -> None:
    """Run each step as PyTorch would on the pieces of each device, on fake tensors; Unclear where one cannot."""
    known: dict[int, Any] = {here.inputs[name]: spec for name, spec in specs.items()}
    plain: set[int] = set()
    with private.without_modes(), private.unlogged_fakes(), private.fake_tensor_mode(), torch.no_grad():
        for step in here.steps:
            before, mine = dict(known), step.numbers()
            found, moved = _propagate(here, step, known, mesh)
            if found is None or plain.issuperset(mine):
                plain |= set(step.results)
                continue
            if any(n in plain and math.prod(here.metas[n].shape) != 1 for n in mine):
                raise Unclear(f"{step.function}, a step of its reference, takes a tensor that is no DTensor")
            _refuse_handled(step, before, moved)
            _refuse_adjusted(step, found)
            met = set()
            for coordinate in coordinates(mesh):
                function, args, kwargs, want = _local(here, step, before, known, found, mesh, coordinate)
                key = repr((args, kwargs))
                if key in met:
                    continue
                met.add(key)
                args, kwargs = tree_map(
                    lambda v: torch.empty(v.shape, dtype=v.dtype, device=v.device) if type(v) is Meta else v,
                    (args, kwargs), is_leaf=lambda v: type(v) is Meta,
                )  # fmt: skip
                try:
                    got = [tuple(t.shape) for t in tensors(function(*args, **kwargs))]
                except Exception as e:
                    raise Unclear(
                        f"PyTorch's rule for {step.function}, a step of its reference, fails on a piece "
                        f"({type(e).__name__})"
                    ) from None
                if got != want:
                    raise Unclear(f"PyTorch's rule for {step.function}, a step of its reference, gives other shapes")


def _refuse_handled(step: Step, known: Mapping[int, Any], moved: bool) -> None:
    """Raise for what PyTorch does by code in its rule's place: pieces of a convolution get their neighbours' edges."""
    handlers = getattr(dtensors.parts().dispatcher, "_custom_op_handlers", {})
    last = any(p.is_shard(len(known[n].tensor_meta.shape) - 1) for n in step.numbers() for p in known[n].placements)
    if step.function in handlers and (moved or last):
        raise Unclear(OWN_WAY.format(step.function))


def _refuse_adjusted(step: Step, found: Any) -> None:
    """Raise for what PyTorch runs with other arguments than its rule was asked about."""
    if found.needs_redistribute and step.function in getattr(
        dtensors.parts().propagator, "op_to_scalar_shape_adjuster", {}
    ):
        raise Unclear(OWN_WAY.format(step.function))


def _local(
    here: Trace, step: Step, before: Mapping[int, Any], known: Mapping[int, Any], found: Any, mesh: Any, coordinate: Any
) -> tuple[Any, Any, Any, list[tuple[int, ...]]]:
    """A step as a device would run it: function, arguments with `Meta` for tensors, and the shapes that must result."""
    function, (args, kwargs) = step.function, step.arguments
    wanted = found.redistribute_schema if found.needs_redistribute else None
    here_specs = iter([before[n] for n in _numbers(args)] if wanted is None else wanted.args_spec)

    def piece(value: Any, spec: Any) -> Any:
        return here.metas[value]._replace(shape=cut(here.metas[value].shape, spec.placements, mesh, coordinate))

    args = list(tree_map(lambda v: piece(v, next(here_specs)) if isinstance(v, Number) else v, args))
    kwargs = tree_map(lambda v: piece(v, before[v]) if isinstance(v, Number) else v, kwargs)
    want = [cut(here.metas[n].shape, known[n].placements, mesh, coordinate) for n in step.results]
    if wanted is not None and wanted.op is not function:  # a squeeze, of what has one element in the whole
        function, args = wanted.op, [args[0], *wanted.args_schema[1:]]
    for i, at in enumerate(_sized(step.function)):
        args[at] = list(want[0]) if i == 0 else list(torch.empty(want[0], device="meta").stride())
    return function, args, kwargs, want


def _numbers(arguments: Any) -> list[int]:
    return [v for v in tree_flatten(arguments)[0] if isinstance(v, Number)]
