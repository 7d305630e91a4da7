"""A run of a reference on fake tensors, step by step: what is known of an operator from shapes alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.derive.vjp import above_autograd
from opwright.kit.private import tree_flatten, tree_map
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op


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

    def numbers(self) -> list[int]:
        """The tensors that it takes."""
        return [v for v in tree_flatten(self.arguments)[0] if isinstance(v, Number)]


class Trace(NamedTuple):
    """A run of the reference on fake tensors."""

    steps: list[Step]
    inputs: dict[str, int]
    outputs: list[int | None]
    metas: dict[int, Meta]
    """What is known of each tensor."""


class Meta(NamedTuple):
    """A tensor of which only this is known."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"


class Number(int):
    """The number of a tensor among the arguments of a step."""


class Constant(NamedTuple):
    """A tensor of which a reference knows the values, as torch.tensor makes them."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    values: str

    @classmethod
    def of(cls, t: Tensor) -> Constant:
        with private.without_modes():
            return cls(t.dtype, tuple(t.shape), repr(t.tolist()))  # as text: a NaN equals itself there


class _Recorder(private.TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []
        self.held: list[Tensor] = []
        self.numbers: dict[int, int] = {}
        self.fake = type(mode.from_tensor(torch.empty(())))

    def number(self, t: Tensor) -> int:
        if id(t) not in self.numbers:
            self.numbers[id(t)] = len(self.held)
            self.held.append(t)
        return self.numbers[id(t)]

    def name(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return Number(self.number(value)) if isinstance(value, self.fake) else Constant.of(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = tree_map(self.name, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        results = tensors(out)
        if not results and not func._schema.is_mutable:
            return out  # a question about a tensor, such as its device
        shapes = tuple(tuple(t.shape) for t in results)
        self.steps.append(Step(func, named, tuple(map(self.number, results)), shapes))
        return out


def trace(op: Op[..., Any], values: Mapping[str, Any], mode: Any = None) -> Trace:
    """Run the reference where values that are `Meta` stand for tensors; Unclear where it needs their numbers. Sizes
    that are symbols are those of `mode`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(private.without_modes())
        stack.enter_context(private.unlogged_fakes())
        mode = private.fake_tensor_mode() if mode is None else mode
        recorder = _Recorder(mode)
        stack.enter_context(mode)
        made = {n: torch.empty(v.shape, dtype=v.dtype, device=v.device) for n, v in values.items() if type(v) is Meta}
        if not op.is_gradient:  # as fake.py runs it
            stack.enter_context(torch.no_grad())
            stack.enter_context(above_autograd())
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
    metas = {n: Meta(tuple(t.shape), t.dtype, t.device.type) for n, t in enumerate(recorder.held)}
    return Trace(recorder.steps, inputs, outputs, metas)


def results(op: Op[..., Any], values: Mapping[str, Any], mode: Any = None) -> list[tuple[int, ...] | None]:
    """The shapes of a call's results by the operator's fake kernel, None for those that it does not give. What that
    raises, the call would. Sizes that are symbols are those of `mode`."""
    mode = private.fake_tensor_mode() if mode is None else mode
    with private.without_modes(), private.unlogged_fakes(), mode, torch.no_grad():
        made = {
            n: torch.empty(v.shape, dtype=v.dtype, device=v.device) if type(v) is Meta else v for n, v in values.items()
        }
        positional, named = op.signature.encode(made)
        out = op.overload(*positional, **named)
    outs = [out] if isinstance(out, Tensor) else list(out or ())
    return [tuple(o.shape) if isinstance(o, Tensor) else None for o in outs]


def same(a: Any, b: Any) -> bool:
    """Whether the arguments of two steps are the same."""
    (ours, shape), (theirs, other) = tree_flatten(a), tree_flatten(b)
    return bool(shape == other and all(x is y or x == y for x, y in zip(ours, theirs, strict=True)))
