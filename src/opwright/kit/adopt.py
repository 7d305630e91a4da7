"""Operators made of what exists: an extension's functions, a torch.autograd.Function, an operator of torch.library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from opwright.kit.define import specify
from opwright.kit.derive import derive
from opwright.kit.dispatch import adopted
from opwright.kit.dispatch.adopted import KEPT, Pair, Recorded
from opwright.kit.dispatch.kernel import refuse_device
from opwright.kit.dispatch.layout import as_promised
from opwright.kit.op import Op
from opwright.kit.spec import words
from opwright.kit.spec.domain import FLOATING, Domain
from opwright.kit.spec.extras import result_names
from opwright.kit.spec.operator import Formula, Spec
from opwright.kit.spec.schema import Signature

DOMAIN = Domain(dtypes=FLOATING)


class _BesideKept(Domain):
    """The calls that a backward takes. The tensor that stands for what was kept is no part of them: it is on the CPU,
    wherever the others are."""

    def refuses(self, arguments: Mapping[str, Any]) -> str | None:
        return super().refuses({name: value for name, value in arguments.items() if name != KEPT})


def adopt(
    what: Any,
    /,
    *,
    reference: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    saves: Sequence[str] = (),
    takes: Sequence[str] | None = None,
    gives: Sequence[str] | None = None,
    device: str | Sequence[str] = ("cpu", "cuda"),
    domain: Domain = DOMAIN,
    name: str | None = None,
    namespace: str | None = None,
) -> Op[..., Any]:
    """Make an operator of what exists, with a reference beside it, so that it can be checked, explained and measured.

    Args:
        what: a subclass of `torch.autograd.Function`; an operator of `torch.ops` or `torch.library.custom_op`; a
            function that autograd records; or, with `backward`, an extension's function. It takes the reference's
            parameters, by position.
        reference: the annotated function in plain PyTorch that says what is right; or an operator, whose reference,
            samples and rejects are taken.
        backward: the extension's function for the gradient.
        saves: names for what `what` returns beside the outputs, in order; they go to `backward` unchanged.
        takes: the arguments of `backward` by name: `grad` or `grad_NAME` for what comes in, a parameter, an output
            (`result`, or its name), or one of `saves`. By default the gradients, then what is saved, else the inputs.
        gives: the inputs whose gradients `backward` returns, in order. By default all that are differentiable.
        device: the kinds of device that it runs on.
        domain: the calls that it takes, floating point by default; for others the reference runs.
        name, namespace: as of `@ow.op`; by default the reference's name.

    Its calls run as kernels, its backward as the gradient's kernel. What it cannot do, such as torch.compile, vmap or a
    second derivative, the reference does.

    >>> import torch, opwright as ow
    >>> class Square(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return 2 * grad * ctx.saved_tensors[0]
    >>> def square(x: torch.Tensor) -> torch.Tensor:
    ...     return x**2
    >>> op = ow.adopt(Square, reference=square)
    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> op(x).backward()
    >>> x.grad
    tensor([6.])
    """
    spec = _specified(reference, name, namespace)
    label, signature = spec.name, spec.signature
    _refuse_kinds(label, signature, spec.random)
    function = _function(label, what)
    _refuse_unfit(label, signature, what)
    derived = _derived(spec)
    grads = list(derived.grads) if derived is not None else []
    known: Recorded | Pair
    if backward is not None and derived is None:
        raise TypeError(
            f"{label}: no tensor of it is differentiable, so it has no use for a backward; leave backward out"
        )
    if backward is None:
        said = {"saves": saves, "takes": takes, "gives": gives}
        alone = next((word for word, given in said.items() if given), None)
        if alone is not None:
            raise TypeError(f"{label}: {alone} is about a backward function, and there is none; give backward=…")
        known = Recorded(label, signature, function)
    else:
        known = _pair(label, signature, function, backward, saves, takes, gives, grads)
    kinds = (device,) if isinstance(device, str) else words.several(label, "device", device, "kinds of device")
    for kind in kinds:
        refuse_device(label, kind)
    if not isinstance(domain, Domain):
        raise TypeError(f"{label}: its domain must be an ow.Domain, got {domain!r}")
    domain.refuse_names(label, signature.names)
    # All that can be wrong has been asked: from here on there is an operator.
    made: Op[..., Any] = Op(spec)
    if isinstance(reference, Op):
        made.become(replace(spec, samples=reference.spec.samples, families=reference.spec.families))
    if derived is None:
        made.become(replace(made.spec, adopted=known))
    else:
        _declare(made, known, derived)
    _bind(made, known, _called(what), grads, tuple(kinds), domain)
    return made


def _derived(spec: Spec) -> derive.Rung | None:
    """The reference's own derivative; None where nothing of it is differentiable, or is declared to be."""
    signature = spec.signature
    if not (signature.differentiable_inputs and signature.differentiable_outputs):
        return None
    derived = derive.rung_above(spec.name, signature, spec.reference, None, False)
    if isinstance(derived, derive.Missing):
        raise TypeError(derived.reason)
    return derived


def _specified(reference: Any, name: str | None, namespace: str | None) -> Spec:
    """The operator of a reference; of another operator's, which keeps its own."""
    if not isinstance(reference, Op):
        return specify(reference, {}, name=name, namespace=namespace, compile="inline")
    chosen = name or f"{reference.name}_adopted"
    spec = replace(reference.spec.bare, name=chosen, namespace=namespace or reference.namespace, compile="inline")
    return replace(spec, autocast=None, vmap=None, doc=reference.__doc__)


def _called(what: Any) -> str:
    """What is adopted, in a word."""
    of_library = adopted.operators(what)
    return str(getattr(what, "__name__", of_library[0].name() if of_library else what))


def _refuse_kinds(name: str, signature: Signature, random: bool) -> None:
    if signature.returns_input and name.endswith("_"):
        raise TypeError(
            f"{name}: an operator whose name ends in _ writes to its first argument, and such cannot be adopted; give "
            f"another by name=…"
        )
    if random or signature.returns_input or any(p.mutated for p in signature.parameters):
        raise TypeError(f"{name}: what draws random numbers or writes to its arguments cannot be adopted")
    if not signature.outputs or any(o.kind.is_list or o.kind.is_optional for o in signature.outputs):
        raise TypeError(f"{name}: what is adopted must return tensors, one or a tuple of them")


def _function(name: str, what: Any) -> Callable[..., Any]:
    if isinstance(what, type) and issubclass(what, torch.autograd.Function):
        function: Callable[..., Any] = what.apply
        return function
    if isinstance(what, Op):
        raise TypeError(f"{name}: {what.name} is an operator of opwright's already; check it as it is")
    if isinstance(what, (type, torch.autograd.Function)) or not callable(what):
        raise TypeError(
            f"{name}: what is adopted must be a function, a torch.autograd.Function or an operator of torch.ops, "
            f"got {what!r}"
        )
    return what  # type: ignore[no-any-return]


def _refuse_unfit(name: str, signature: Signature, what: Any) -> None:
    """Raise where what is adopted cannot be called with the reference's parameters, as far as Python knows it."""
    forward, context = what, 0
    if isinstance(what, type) and issubclass(what, torch.autograd.Function):
        # With a context, unless another function takes that.
        forward, context = what.forward, int(what.setup_context is torch.autograd.Function.setup_context)
    try:
        taken = None if adopted.operators(what) else inspect.signature(forward)
    except (TypeError, ValueError):  # of C++, which says it at the first call
        taken = None
    if taken is None:
        return
    args, named = adopted.arranged(signature, dict.fromkeys(signature.names), adopted.by_name(forward, signature))
    try:
        taken.bind(*[None] * context, *args, **named)
    except TypeError as e:
        raise TypeError(
            f"{name}: what is adopted must take its reference's parameters, ({', '.join(signature.names)}), and "
            f"{_called(what)} takes {taken} ({e})"
        ) from None


def _pair(
    name: str,
    signature: Signature,
    forward: Callable[..., Any],
    backward: Any,
    saves: Sequence[str],
    takes: Sequence[str] | None,
    gives: Sequence[str] | None,
    grads: list[str],
) -> Pair:
    words.function(name, "backward", backward)
    extra = words.several(name, "saves", saves, "names")
    results = result_names(signature)
    known = [*grads, *signature.names, *(n for n in results if n not in signature.names), *extra]
    twice = next((n for n in extra if known.count(n) > 1), None)
    if twice is not None:
        raise TypeError(f"{name}: saves names {twice!r}, which stands for something else already")
    inputs = [p.name for p in signature.differentiable_inputs]
    taken = (*grads, *(extra or signature.names)) if takes is None else words.several(name, "takes", takes, "names")
    given = tuple(inputs) if gives is None else words.several(name, "gives", gives, "names")
    for word, listed, choice in (("takes", taken, known), ("gives", given, inputs)):
        wrong = next((n for n in listed if n not in choice), None)
        if wrong is not None:
            raise TypeError(f"{name}: {word} names {wrong!r}{words.near(wrong, choice)}; there are {', '.join(choice)}")
    lacks = [n for n in inputs if n not in given]
    if lacks:
        raise TypeError(
            f"{name}: gives leaves out {lacks[0]!r}, which is differentiable; declare it nondifferentiable with @ow.op"
        )
    return Pair(name, signature, (forward, backward), (extra, taken, given), results, grads)


def _declare(made: Op[..., Any], known: Recorded | Pair, derived: derive.Rung) -> None:
    """What is right, and what its gradient takes: the reference's own derivative, and what was kept beside it."""
    signature, reference = made.signature, made.reference

    def saving(**values: Any) -> tuple[Any, ...]:
        out = reference(**values)
        return (*([out] if signature.single else out), adopted.nothing())

    def gradient(**values: Any) -> Any:
        values.pop(KEPT)
        return derived.reference(**values)

    saving.__signature__ = _taking(list(signature.names))  # type: ignore[attr-defined]
    names = [*(n for n in derived.signature.names if n != derived.wanted), KEPT, derived.wanted]
    gradient.__signature__ = _taking(names, dict.fromkeys(derived.grads, "Tensor | None"))  # type: ignore[attr-defined]
    made.saving(KEPT)(saving)
    made.become(replace(made.spec, formula=Formula(gradient, derived=True), adopted=known))


def _taking(names: Sequence[str], annotations: dict[str, str] | None = None) -> inspect.Signature:
    kind, said, unsaid = inspect.Parameter.KEYWORD_ONLY, annotations or {}, inspect.Parameter.empty
    return inspect.Signature([inspect.Parameter(n, kind, annotation=said.get(n, unsaid)) for n in names])


def _bind(
    made: Op[..., Any], known: Recorded | Pair, label: str, grads: list[str], kinds: tuple[str, ...], domain: Domain
) -> None:
    single = made.signature.single

    def forward(*args: Any, **kwargs: Any) -> Any:
        outs = as_promised(made, known.forward(made.signature.bind(args, kwargs)), args, kwargs)
        return outs[0] if single else tuple(outs)

    forward.__name__ = label
    for kind in kinds:
        made.kernel(kind, domain)(forward)
    if made.saving_form is None:  # nothing of it is differentiable
        return
    rung = made.derivation

    def saving(*args: Any, **kwargs: Any) -> Any:
        outs, state = known.saving(made.signature.bind(args, kwargs))
        return (*as_promised(made, outs, args, kwargs), adopted.keep(state))

    def backward(*args: Any, **kwargs: Any) -> Any:
        values = rung.signature.bind(args, kwargs)
        state = adopted.kept(values[KEPT])
        if state is None:  # the reference ran, or somebody copied what stands for it
            return rung.reference(**values)
        wanted = derive.read_mask(values[rung.wanted], values, made.signature.differentiable_inputs)
        found = known.backward(state, [values[g] for g in grads], wanted, values)
        if found is None:
            return rung.reference(**values)
        return tuple(as_promised(made.backward, found, args, kwargs))

    saving.__name__ = label
    backward.__name__ = f"{label}'s backward"
    above = _BesideKept(**{f.name: getattr(domain, f.name) for f in fields(domain) if f.init})
    for kind in kinds:
        made.saving_form.kernel(kind, domain)(saving)
        made.backward.kernel(kind, above)(backward)
