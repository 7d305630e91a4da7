"""Placements carried through a reference: whether every device may run an operator on its own pieces.

The reference is run on fake tensors, of the whole call and of what each device has of it. Where PyTorch's own rules
take the pieces through each step without moving any, and each device's run does exactly what its part of the whole
does, the operator itself may run on the pieces, kernel and all.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.derive.vjp import above_autograd
from opwright.kit.private import tree_flatten, tree_map
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

aten = torch.ops.aten
_NEUTRAL = {
    aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default,
    aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default,
}  # fmt: skip
"""What takes each element by itself and is not tagged so."""


class Unclear(Exception):
    """There is no rule, and why."""


class Moves(Unclear):
    """A step of the reference needs data of other devices: PyTorch can move them, step by step."""


class Step(NamedTuple):
    """One call to PyTorch in a run of the reference; tensors are numbers in order of appearance."""

    function: Any
    arguments: Any
    results: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]


class Trace(NamedTuple):
    """A run of the reference on fake tensors."""

    steps: list[Step]
    inputs: dict[str, int]
    outputs: list[int | None]
    shapes: dict[int, tuple[int, ...]]


class _Number(int):
    """The number of a tensor among the arguments of a step."""


class _Recorder(private.TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []
        self.held: list[Tensor] = []
        self.numbers: dict[int, int] = {}

    def number(self, t: Tensor) -> int:
        if id(t) not in self.numbers:
            self.numbers[id(t)] = len(self.held)
            self.held.append(t)
        return self.numbers[id(t)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = tree_map(lambda v: _Number(self.number(v)) if isinstance(v, Tensor) else v, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        results = tensors(out)
        if not results and not func._schema.is_mutable:
            return out  # a question about a tensor, such as its device
        shapes = tuple(tuple(t.shape) for t in results)
        self.steps.append(Step(func, named, tuple(map(self.number, results)), shapes))
        return out


class Meta(NamedTuple):
    """A tensor of which only this is known."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"


def trace(op: Op[..., Any], values: Mapping[str, Any]) -> Trace:
    """Run the reference where values that are `Meta` stand for tensors; Unclear where it needs their numbers."""
    mode = private.fake_tensor_mode()
    with contextlib.ExitStack() as stack:
        stack.enter_context(private.without_modes())
        stack.enter_context(private.unlogged_fakes())
        stack.enter_context(mode)
        made = {n: torch.empty(v.shape, dtype=v.dtype, device=v.device) for n, v in values.items() if type(v) is Meta}
        if not op.is_gradient:  # as fake.py runs it
            stack.enter_context(torch.no_grad())
            stack.enter_context(above_autograd())
        recorder = _Recorder()
        inputs = {name: recorder.number(t) for name, t in made.items()}
        given = {**values, **made}
        positional = [given[p.name] for p in op.signature.parameters if not p.keyword_only and p.name in given]
        named = {p.name: given[p.name] for p in op.signature.parameters if p.keyword_only and p.name in given}
        stack.enter_context(recorder)
        try:
            out = op.run_reference(*positional, **named)
        except Exception as e:
            raise Unclear(f"its reference cannot be traced ({type(e).__name__})") from None
    if any(o.kind.is_list for o in op.signature.outputs):
        raise Unclear("it returns a list of tensors")
    outs = [] if out is None else [out] if isinstance(out, Tensor) else list(out)
    outputs = [None if o is None else recorder.number(o) for o in outs]
    shapes = {n: tuple(t.shape) for n, t in enumerate(recorder.held)}
    return Trace(recorder.steps, inputs, outputs, shapes)


def absent(op: Op[..., Any], values: Mapping[str, Any]) -> set[int]:
    """The results that a call does not give, by what the operator's fake kernel says."""
    with private.without_modes(), private.unlogged_fakes(), private.fake_tensor_mode(), torch.no_grad():
        made = {
            n: torch.empty(v.shape, dtype=v.dtype, device=v.device) if type(v) is Meta else v for n, v in values.items()
        }
        positional, named = op.signature.encode(made)
        try:
            out = op.overload(*positional, **named)
        except Exception:
            return set()  # whoever calls it will be told
    return {i for i, o in enumerate(out) if o is None} if isinstance(out, (tuple, list)) else set()


# --- element by element --------------------------------------------------------------------------------------------


def is_elementwise(op: Op[..., Any], values: Mapping[str, Any]) -> bool:
    """Whether a call takes each element by itself, whatever the sizes: all dimensions may be cut."""
    here = trace(op, values)
    if not here.steps or not all(map(_takes_elements, here.steps)):
        return False
    shapes = [here.shapes[n] for n in here.inputs.values()]
    whole = torch.broadcast_shapes(*shapes)
    if any(o is None or here.shapes[o] != whole for o in here.outputs):
        return False
    for resize in (lambda n: -(-n // 2), lambda n: 2 * n + 3):
        others = {n: _resized(v, resize) if type(v) is Meta else v for n, v in values.items()}
        try:
            other = trace(op, others)
        except Unclear:
            return False  # it takes sizes of its own alone
        if not _same_steps(here, other):
            return False  # a number in it depends on a size
    return True


def _resized(meta: Meta, resize: Callable[[int], int]) -> Meta:
    return meta._replace(shape=tuple(resize(n) if n > 1 else n for n in meta.shape))


def _takes_elements(step: Step) -> bool:
    if torch.Tag.pointwise in step.function.tags or step.function in _NEUTRAL:
        return True
    return not _numbers(step) and all(shape == () for shape in step.shapes)  # a constant


def _numbers(step: Step) -> list[int]:
    return [v for v in tree_flatten(step.arguments)[0] if isinstance(v, _Number)]


def _same_steps(one: Trace, other: Trace) -> bool:
    return len(one.steps) == len(other.steps) and all(
        a.function is b.function and _same(a.arguments, b.arguments)
        for a, b in zip(one.steps, other.steps, strict=True)
    )


def _same(a: Any, b: Any) -> bool:
    (ours, shape), (theirs, other) = tree_flatten(a), tree_flatten(b)
    return bool(shape == other and all(x is y or x == y for x, y in zip(ours, theirs, strict=True)))


# --- step by step --------------------------------------------------------------------------------------------------


def placements(op: Op[..., Any], values: Mapping[str, Any], specs: Mapping[str, Any], mesh: Any) -> list[Any]:
    """The placements of an operator's results where its tensors are placed as these DTensorSpecs say; None for a result
    that is absent. Moves where PyTorch would have to move data, Unclear where there is no telling."""
    dt = private.dtensor()
    if any(isinstance(p, dt.StridedShard) for spec in specs.values() for p in spec.placements):
        raise Moves("it is cut in strides")
    if any(type(n) is not int for v in values.values() if type(v) is Meta for n in v.shape):
        raise Moves("its sizes are symbols")
    here = trace(op, values)
    known: dict[int, Any] = {here.inputs[name]: spec for name, spec in specs.items()}
    pieces = list(_pieces(op, values, specs, mesh))
    constants = False
    for index, step in enumerate(here.steps):
        constants = constants or any(n not in known for n in _numbers(step))
        _carry(step, known, mesh, constants)
        for coordinate, piece in pieces:
            _compare(here, piece, index, known, mesh, coordinate)
    for _, piece in pieces:
        if len(piece.steps) != len(here.steps) or [o is None for o in piece.outputs] != [
            o is None for o in here.outputs
        ]:
            raise Moves("its reference does something else for a piece than for the whole")
    whole = (dt.Replicate(),) * mesh.ndim
    return [None if o is None else known[o].placements if o in known else whole for o in here.outputs]


def _carry(step: Step, known: dict[int, Any], mesh: Any, constants: bool) -> None:
    """Let PyTorch say where the results of a step are."""
    dt = private.dtensor()
    mine = _numbers(step)
    spelled = str(step.function)
    if not any(n in known for n in mine):
        for number, shape in zip(step.results, step.shapes, strict=True):
            known[number] = _replicated(shape, mesh)  # made of nothing, the same on every device
        return
    for number in mine:
        if number not in known:
            raise Unclear(f"{spelled} takes a tensor that comes from nowhere")
    arguments = tree_map(lambda v: known[v] if isinstance(v, _Number) else v, step.arguments)
    info = dt.propagator.op_to_schema_info.get(step.function) or getattr(
        dt.propagator, "op_to_schema_info_for_single_dim_strategy", {}
    ).get(step.function)
    schema = dt.OpSchema(step.function, tuple(arguments[0]), dict(arguments[1]), schema_info=info)
    try:
        found = dt.propagator.propagate_op_sharding_non_cached(schema)
    except NotImplementedError:
        raise Unclear(f"PyTorch has no rule for {spelled}, a step of its reference") from None
    except Exception as e:
        raise Unclear(f"PyTorch cannot shard {spelled}, a step of its reference ({type(e).__name__})") from None
    wanted = found.redistribute_schema
    if found.needs_redistribute and wanted is not None:
        moved = zip(schema.args_spec, wanted.args_spec, strict=False)
        if any(mine.placements != theirs.placements for mine, theirs in moved):
            kind = Unclear if constants else Moves
            raise kind(f"{spelled}, a step of its reference, needs more than each device has")
    specs = list(tree_flatten(found.output_spec, is_leaf=lambda v: isinstance(v, dt.Spec))[0])
    if len(specs) != len(step.results):
        raise Unclear(f"PyTorch says too little about {spelled}, a step of its reference")
    known.update(zip(step.results, specs, strict=True))


def _replicated(shape: Sequence[int], mesh: Any) -> Any:
    dt = private.dtensor()
    meta = dt.Meta(torch.Size(shape), torch.empty(shape, device="meta").stride(), torch.float32)
    return dt.Spec(mesh, (dt.Replicate(),) * mesh.ndim, tensor_meta=meta)


def _pieces(
    op: Op[..., Any], values: Mapping[str, Any], specs: Mapping[str, Any], mesh: Any
) -> Iterator[tuple[tuple[int, ...], Trace]]:
    """A run of the reference on what a device has, for each kind of device; with the coordinate of one."""
    met = set()
    for coordinate in itertools.product(*(range(mesh.size(i)) for i in range(mesh.ndim))):
        local = {n: cut(values[n].shape, s.placements, mesh, coordinate) for n, s in specs.items()}
        key = tuple(local.items())
        if key not in met:
            met.add(key)
            given = {n: v._replace(shape=local[n]) if n in local else v for n, v in values.items()}
            yield coordinate, _trace_piece(op, given)


def _trace_piece(op: Op[..., Any], values: Mapping[str, Any]) -> Trace:
    try:
        return trace(op, values)
    except Unclear:
        raise Moves("its reference takes the whole and not a piece of it") from None


def cut(shape: Sequence[int], placements: Sequence[Any], mesh: Any, coordinate: Sequence[int]) -> tuple[int, ...]:
    """The shape of a device's piece of a tensor, by the device's place in the mesh."""
    sizes = list(shape)
    for axis, placement in enumerate(placements):
        if placement.is_shard():
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
    for number, shape, local in zip(step.results, step.shapes, mine.shapes, strict=True):
        if cut(shape, known[number].placements, mesh, coordinate) != local:
            raise Moves(f"{step.function}, a step of its reference, gives other shapes for a piece than for the whole")
    if _same(step.arguments, mine.arguments):
        return
    # Sizes that PyTorch would put there too.
    places = private.dtensor().propagator.op_to_shape_and_stride_idx.get(step.function)
    sized = () if places is None else places if isinstance(places, tuple) else (places,)
    blank = [[None if i in sized else v for i, v in enumerate(s.arguments[0])] for s in (step, mine)]
    if not (sized and _same((blank[0], step.arguments[1]), (blank[1], mine.arguments[1]))):
        raise Moves(f"{step.function}, a step of its reference, takes a number that depends on the whole's size")
