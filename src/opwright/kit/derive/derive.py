"""What follows from a reference: its gradient as an operator of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from opwright.kit.derive import keeping
from opwright.kit.derive.vjp import refuse_errors, vjp, where_history_ends
from opwright.kit.spec import probe
from opwright.kit.spec.extras import Extras, result_names
from opwright.kit.spec.kinds import BASIC, OPTIONAL_TENSOR, TENSOR, Kind, Like, list_of
from opwright.kit.spec.schema import EMPTY, Output, Parameter, Signature
from opwright.kit.spec.values import copied, has_gradient, has_values, tensors, tuple_of

TENSORS = list_of(TENSOR)
MOST_ARGUMENTS = 64
"""PyTorch's dispatcher takes no more."""


@dataclass(frozen=True)
class Missing:
    """There is no gradient operator, and why."""

    reason: str
    too_long: bool = False
    """Whether it would take more arguments than an operator can."""


def _mask_kind(count: int) -> Kind:
    """Which of `count` gradients are wanted. The length is checked before a kernel can read past it."""
    bools = list_of(BASIC[bool])

    def convert(value: Any) -> Any:
        read = bools.convert(value)
        if len(read) != count:
            raise TypeError
        return read

    return Kind("bool[]?", f"a list of {count} bools or None", "{v} is None", convert)


@dataclass(frozen=True)
class Rung:
    """A gradient in the ladder: its signature, its reference, and where each of its arguments comes from."""

    signature: Signature
    reference: Callable[..., Any]
    grads: tuple[str, ...]
    """The parameters that take the incoming gradients, one for each differentiable output of the operator below."""
    inputs: tuple[str, ...]
    """The parameters saved from the inputs of the operator below, under the names they have there."""
    outputs: dict[str, int]
    """The parameters saved from its outputs."""
    wanted: str
    """The parameter that says which gradients are wanted."""
    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For a saved tensor: the inputs whose gradients read its values; absent: all of them."""
    when: Mapping[str, str] = field(default_factory=dict)
    """For a saved tensor: the bool argument of the operator below without which a call does not keep it."""
    extras: Extras | None = None
    """The extra results that are among its arguments, if any are."""
    caches: frozenset[str] = frozenset()
    """With extras: the parameters that only repeat what follows from the inputs, extras and outputs alike."""
    gradient: Callable[..., Any] | None = None
    """The formula that its author declared, if one was; and the names it takes."""
    takes: tuple[str, ...] = ()
    total: Callable[..., Any] | None = None
    """With extras: the same gradient from the incoming gradients and the inputs alone, without the caches. It is what
    further derivatives are taken of. None when there are none to take: the operator is differentiable once."""

    @property
    def bare(self) -> Signature:
        """Its signature without the caches."""
        kept = tuple(p for p in self.signature.parameters if p.name not in self.caches)
        return replace(self.signature, parameters=kept)


def rung_above(
    name: str,
    signature: Signature,
    reference: Callable[..., Any],
    gradient: Callable[..., Any] | None,
    random: bool,
    extras: Extras | None = None,
    of_gradient: bool = False,
    when: Mapping[str, str] | None = None,
) -> Rung | Missing:
    """The rung above an operator: from its author's gradient where there is one, else from its reference."""
    if not signature.differentiable_inputs or not (signature.differentiable_outputs or signature.returns_input):
        return Missing(f"{name}: it has no derivative, since no tensor of it is differentiable")
    if signature.returns_input:
        return Missing(f"{name}: it works in place; autograd records what its reference does")
    taken = set(signature.names)
    grads = tuple(_grad_parameter(signature, i, taken) for i in signature.differentiable_outputs)
    if gradient is None:
        if random:
            return Missing(
                f"{name}_backward: it cannot be derived, since the reference of {name} draws random numbers and "
                f"would draw others; declare it with @{name}.gradient and save what was drawn as an output"
            )
        return _fitting(name, _derived(name, signature, reference, grads, taken, of_gradient))
    rung = _declared(name, signature, gradient, grads, extras, when or {})
    if rung.extras is None or rung.extras.once:
        return _fitting(name, rung)
    derived = _derived(name, signature, reference, grads, taken)
    bare = rung.bare

    def total(*args: Any, **kwargs: Any) -> Any:
        values = bare.bind(args, kwargs)
        values[derived.wanted] = values.pop(rung.wanted)
        return derived.reference(**values)

    return _fitting(name, replace(rung, total=total))


def _fitting(name: str, rung: Rung) -> Rung | Missing:
    count = len(rung.signature.parameters)
    if count <= MOST_ARGUMENTS:
        return rung
    most = f"and an operator takes at most {MOST_ARGUMENTS}"
    return Missing(f"{name}_backward: it would take {count} arguments, {most}", too_long=True)


def _grad_parameter(signature: Signature, index: int, taken: set[str]) -> Parameter:
    output = signature.outputs[index]
    if output.name is None and len(signature.differentiable_outputs) == 1:
        name = "grad"
    else:
        name = f"grad_{output.name if output.name is not None else index}"
    while name in taken:
        name += "_"
    taken.add(name)
    if output.kind.is_list:
        return Parameter(name, TENSORS)
    alone = len(signature.differentiable_outputs) == 1
    return Parameter(name, TENSOR if alone else OPTIONAL_TENSOR)


def _results(signature: Signature) -> tuple[Output, ...]:
    """The results of a rung: a gradient for each differentiable input; None where it is not wanted."""
    return tuple(
        Output(f"grad_{p.name}", TENSORS if p.kind.is_list else OPTIONAL_TENSOR)
        for p in signature.differentiable_inputs
    )


def _assemble(
    name: str,
    below: Signature,
    grads: Sequence[Parameter],
    saved: Sequence[Parameter],
    outputs: dict[str, int],
    mask: str,
    gradients: Callable[[dict[str, Any]], tuple[Any, ...]],
) -> Rung:
    """The rung that computes `gradients`, a function of its arguments by name."""
    parameters = [
        *grads,
        *saved,
        Parameter(mask, _mask_kind(len(below.differentiable_inputs)), None, keyword_only=True),
    ]
    # A parameter without a default may not follow one with: saved outputs and plain inputs come first.
    parameters.sort(key=lambda p: (p.keyword_only, p.default is not EMPTY))
    results = _results(below)
    kept = {p.name for p in saved}

    def reference(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = rung.signature.bind(args, kwargs)
        out = gradients(dict(given))
        own: tuple[Any, ...] = probe.unalias([t for value in given.values() for t in tensors(value)], out)
        return own

    container = tuple_of(*(str(o.name) for o in results))
    rung = Rung(
        signature=Signature(tuple(parameters), results, container, single=False),
        reference=reference,
        grads=tuple(p.name for p in grads),
        # In the order of the parameters, in which C++ saves: a checkpoint compares what two passes have saved.
        inputs=tuple(p.name for p in parameters if p.name in kept and p.name not in outputs),
        outputs={p.name: outputs[p.name] for p in parameters if p.name in outputs},
        wanted=mask,
    )
    return rung


def _mask_name(taken: Iterable[str]) -> str:
    mask = "wanted"
    while mask in taken:
        mask += "_"
    return mask


def _derived(
    name: str,
    below: Signature,
    reference: Callable[..., Any],
    grads: tuple[Parameter, ...],
    taken: set[str],
    of_gradient: bool = False,
) -> Rung:
    mask = _mask_name(taken)
    differentiable = below.differentiable_inputs
    chosen = below.differentiable_outputs

    def gradients(given: dict[str, Any]) -> tuple[Any, ...]:
        wanted = read_mask(given.pop(mask), given, differentiable)
        cotangents = [given[p.name] for p in grads]
        arguments = {p.name: given[p.name] for p in below.parameters}
        return _vjp_of_call(name, below, reference, arguments, wanted, chosen, cotangents, of_gradient)

    return _assemble(name, below, grads, [_kept(p) for p in below.parameters], {}, mask, gradients)


def _kept(p: Parameter) -> Parameter:
    """An argument as the gradient takes it: one that was written to, as it was before, and to read."""
    return replace(p, mutated=False, differentiable=False) if p.mutated else p


def _declared(
    name: str,
    below: Signature,
    gradient: Callable[..., Any],
    grads: tuple[Parameter, ...],
    extras: Extras | None,
    when: Mapping[str, str],
) -> Rung:
    by_grad = {p.name: p for p in grads}
    named = [*result_names(below), *(extras.names if extras else ())]
    outs = extras.add_to(below).outputs if extras else below.outputs
    results = {n: (i, o) for i, (n, o) in enumerate(zip(named, outs, strict=True))}
    if not callable(gradient):
        raise TypeError(f"{name}: its gradient must be a function, got {type(gradient).__name__}")
    given = inspect.signature(gradient).parameters
    mask = _mask_name(below.names)
    used: list[Parameter] = []
    outputs: dict[str, int] = {}
    for p in given.values():
        if p.name in by_grad:
            if "None" not in str(p.annotation) and by_grad[p.name].kind is OPTIONAL_TENSOR:
                # A formula that does not speak of None gets zeros for a gradient that is absent.
                by_grad[p.name] = Parameter(p.name, TENSOR)
            continue
        if p.name == mask:
            continue
        if p.name in below.names:
            parameter = _kept(below.names[p.name])
            if p.annotation == Like or p.annotation in ("Like", "ow.Like"):  # a string in a file of lazy annotations
                parameter = replace(parameter, like=True)
            used.append(parameter)
        elif p.name in results:
            index, output = results[p.name]
            outputs[p.name] = index
            used.append(Parameter(p.name, output.kind, differentiable=output.differentiable))
        else:
            raise TypeError(
                f"{name}: its gradient takes {p.name!r}, which is neither an incoming gradient "
                f"({', '.join(by_grad)}), nor a parameter of {name} ({', '.join(below.names)}), "
                f"nor a result ({', '.join(results)}), nor {mask!r}"
            )
    missing = [n for n in by_grad if n not in given]
    if missing:
        raise TypeError(f"{name}: its gradient must take the incoming gradient {missing[0]!r}")
    differentiable = below.differentiable_inputs
    cached = extras is not None and any(n in outputs for n in extras.names)
    if cached and extras is not None:
        used = [replace(p, differentiable=False) if p.name in outputs else p for p in used]
        if not extras.once:
            # What a second derivative is computed from: every input, whatever the formula itself needs.
            plain = [replace(p, like=False) for p in used]
            used = [*plain, *(_kept(p) for p in below.parameters if p.name not in given)]

    def gradients(values: dict[str, Any]) -> tuple[Any, ...]:
        asked = values.pop(mask)
        kept = {n: v for n, v in values.items() if n not in when or values[when[n]]}
        wanted = read_mask(asked, kept, differentiable)
        if mask in given:
            values[mask] = wanted
        out = gradient(**{n: v for n, v in values.items() if n in given})
        out = out if isinstance(out, (tuple, list)) and not _one_list(differentiable) else (out,)
        if len(out) != len(differentiable):
            raise TypeError(
                f"{name}: its gradient returned {len(out)} results; it must return one for each differentiable input: "
                f"{', '.join(p.name for p in differentiable)}"
            )
        return tuple(_empty(p) if not w else o for p, w, o in zip(differentiable, wanted, out, strict=True))

    rung = _assemble(name, below, list(by_grad.values()), used, outputs, mask, gradients)
    rung = replace(rung, gradient=gradient, takes=tuple(given))
    rung = keeping.with_when(name, below, rung, when)
    if cached:
        rung = replace(rung, extras=extras, caches=frozenset(outputs))
    return rung


def _one_list(differentiable: tuple[Parameter, ...]) -> bool:
    return len(differentiable) == 1 and differentiable[0].kind.is_list


def _empty(p: Parameter) -> Any:
    return [] if p.kind.is_list else None


def read_mask(mask: Sequence[bool] | None, values: dict[str, Any], differentiable: tuple[Parameter, ...]) -> list[bool]:
    """Which gradients to compute: all by default, and never one of an integer or of an absent tensor."""
    if mask is not None and len(mask) != len(differentiable):
        raise ValueError(f"wanted must have {len(differentiable)} entries, got {len(mask)}")
    return [
        (mask is None or bool(mask[i])) and (p.name not in values or any(map(has_gradient, tensors(values[p.name]))))
        for i, p in enumerate(differentiable)
    ]


def _vjp_of_call(
    name: str,
    below: Signature,
    reference: Callable[..., Any],
    arguments: dict[str, Any],
    wanted: list[bool],
    chosen: tuple[int, ...],
    cotangents: list[Any],
    of_gradient: bool,
) -> tuple[Any, ...]:
    differentiable = below.differentiable_inputs
    primals = [
        t
        for p, w in zip(differentiable, wanted, strict=True)
        if w
        for t in tensors(arguments[p.name])
        if has_gradient(t)
    ]
    flat_cotangents = [
        c for cotangent in cotangents for c in (cotangent if isinstance(cotangent, list) else [cotangent])
    ]

    def call(*values: Tensor, which: Sequence[bool] = wanted) -> list[Tensor]:
        feed = iter(values)
        filled = dict(arguments)
        for p in below.parameters:
            if p.mutated and filled[p.name] is not None:  # what it writes is not the caller's
                filled[p.name] = copied(filled[p.name])
        for p, w in zip(differentiable, which, strict=True):
            if w:
                filled[p.name] = _replace_tensors(arguments[p.name], feed)
        args = [filled[p.name] for p in below.parameters if not p.keyword_only]
        out = reference(*args, **{p.name: filled[p.name] for p in below.parameters if p.keyword_only})
        outs = (out,) if below.single else out
        return [t for i in chosen for t in (outs[i] if isinstance(outs[i], (list, tuple)) else [outs[i]])]

    def lost_in_gradient() -> str:
        """A gradient is linear in those that come in. One that follows not even them, and is not zero, was computed
        where PyTorch keeps no history."""
        everything = [t for p in differentiable for t in tensors(arguments[p.name]) if has_gradient(t)]
        given = [bool(tensors(arguments[p.name])) for p in differentiable]
        out = [t for t in call(*(t.detach().requires_grad_() for t in everything), which=given) if t is not None]
        refuse_errors([t.grad_fn for t in out])
        if not all(has_values(t) for t in out):
            return ""  # what is computed later will tell
        return "what it does" if out and not any(t.requires_grad for t in out) and any(t.any() for t in out) else ""

    def refuse_constant() -> None:
        """No result depends on the wanted inputs. Zeros are right for a step or for a linear function's gradient, and
        wrong for a function that PyTorch has no derivative of: where it raises, so do we."""
        if of_gradient:
            lost = lost_in_gradient()
        else:
            lost = where_history_ends(call, primals)
        if lost:
            raise RuntimeError(
                f"{name}: element 0 of tensors does not require grad and does not have a grad_fn, since PyTorch has no "
                f"derivative of {lost} in the reference of {name}; declare a gradient with @{name}.gradient, or what "
                f"has none with @ow.op(nondifferentiable=…)"
            )

    found = iter(vjp(call, primals, flat_cotangents, refuse_constant))
    return tuple(
        _gradient_of(arguments[p.name], found) if w else _empty(p) for p, w in zip(differentiable, wanted, strict=True)
    )


def _replace_tensors(value: Any, feed: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(feed) if has_gradient(value) else value
    return [next(feed) if has_gradient(t) else t for t in value]


def _gradient_of(value: Any, found: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(found)
    return [next(found) if has_gradient(t) else torch.zeros_like(t) for t in value]
