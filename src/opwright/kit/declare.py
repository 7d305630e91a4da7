"""What an author says of an operator beside its reference: gradient, samples, kernels, measurements.

Each declaration makes a new spec and binds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from opwright.kit.derive import derive
from opwright.kit.derive.roles import Role
from opwright.kit.dispatch import fake, meshes
from opwright.kit.dispatch.kernel import DEVICES
from opwright.kit.kernels import KernelDeclarations
from opwright.kit.spec import shard, words
from opwright.kit.spec.domain import Cost
from opwright.kit.spec.extras import Extras, read_extras
from opwright.kit.spec.measured import Sizes, Variant, read_family, refuse_taken
from opwright.kit.spec.operator import Formula
from opwright.kit.spec.samples import Maker

if TYPE_CHECKING:
    from opwright.kit.op import Op


class Declarations(KernelDeclarations):
    """The decorators of an operator, and what they were told."""

    role: Role

    def save(self, extras: Extras) -> None:
        """Take extra results, and a form that returns them."""
        raise NotImplementedError

    @overload
    def gradient(self, function: Callable[..., Any], /) -> Callable[..., Any]: ...

    @overload
    def gradient(
        self,
        /,
        *,
        needs: Mapping[str, Sequence[str]] | None = None,
        when: Mapping[str, str] | None = None,
        surrogate: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...

    def gradient(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        needs: Mapping[str, Sequence[str]] | None = None,
        when: Mapping[str, str] | None = None,
        surrogate: bool = False,
    ) -> Any:
        """Declare the gradient by a formula. The names of its parameters say what it saves: `grad` (or
        `grad_NAME` for each of several outputs) is what comes in, `result` (or an output's name) the result,
        every other name a parameter of the operator; annotated `ow.Like`, only its shape, dtype and device.
        It returns one gradient for each differentiable input. It is the gradient wherever the operator is
        differentiated, with or without kernels, and is proved against the reference's own derivative.

        A `surrogate` differs from that derivative on purpose (straight-through, reversal, clipping). Kernels of the
        gradient are then proved against the formula, its derivative is the formula's, and forward mode, which
        has no formula, raises.

        `needs` says which of the tensors it saves the gradient of each input reads. A tensor that no wanted gradient
        reads is then not kept; the formula gets one of the same shape, full of NaN.

        `when` names, for a saved tensor, a bool parameter of the operator: a call that sets it to False does not keep
        the tensor, and the formula gets None.

        >>> import torch, opwright as ow
        >>> @ow.op
        ... def half_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ...     return x * y / 2
        >>> @half_product.gradient(needs={"x": ["y"], "y": ["x"]})
        ... def _(grad, x, y):
        ...     return grad * y / 2, grad * x / 2
        >>> half_product.backward.signature.schema("backward")
        'backward(Tensor grad, Tensor x, Tensor y, *, bool[]? wanted=None) -> (Tensor grad_x, Tensor grad_y)'
        """

        name = self.spec.name
        words.flag(name, "surrogate", surrogate)
        read = None
        if needs is not None:
            if not isinstance(needs, Mapping):
                raise TypeError(f"{name}: needs must be a dict by the names of inputs, got {needs!r}")
            read = {each: words.several(name, f"needs of {each}", names, "names") for each, names in needs.items()}

        if when is not None and not isinstance(when, Mapping):
            raise TypeError(f"{name}: when must be a dict by the names of saved tensors, got {when!r}")

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            formula = Formula(function, read, surrogate, None if when is None else dict(when))
            found = self.role.gradient(self.spec, formula)
            if isinstance(found, derive.Missing):
                raise TypeError(found.reason)
            self.become(replace(self.spec, formula=formula), found)
            return function

        return declare if function is None else declare(function)

    def saving(self, *names: str, once: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare extra results: a second function of the same parameters that returns the outputs and, after them,
        one tensor for each of `names`. It runs in the reference's place when a gradient will be wanted, and a
        declared gradient takes the extras by name. They are caches: a second derivative is computed from the inputs,
        which are kept for it, unless the operator is differentiable `once`.

        `NAME_saving` is an operator like any other, with kernels of its own: `op.saving_form.kernel_file(…)`.

        >>> import torch, opwright as ow
        >>> @ow.op
        ... def softsign(x: torch.Tensor) -> torch.Tensor:
        ...     return x / (1 + x.abs())
        >>> @softsign.saving("scale")
        ... def _(x):
        ...     scale = 1 / (1 + x.abs())
        ...     return x * scale, scale
        >>> @softsign.gradient
        ... def _(grad, scale):
        ...     return grad * scale * scale
        >>> softsign.saving_form.schema
        'softsign_saving(Tensor x) -> (Tensor, Tensor scale)'
        """
        spec, of_gradient = self.spec, self.role.is_gradient
        words.flag(spec.name, "once", once)
        read = read_extras(spec.name, spec.signature, names, once, spec.random, of_gradient)

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            self.save(read(function))
            return function

        return declare

    def samples(self, function: Callable[[Maker], Iterable[Any]]) -> Callable[[Maker], Iterable[Any]]:
        """Declare inputs it must be right on: a generator that takes `make` and yields its arguments, a dict of
        keyword arguments last. `make(*shape)` gives a tensor of the dtype, device and layout under test."""
        words.function(self.spec.name, "what yields samples", function)
        self.become(replace(self.spec, samples=(*self.spec.samples, function)))
        return function

    def rejects(self, function: Callable[[Maker], Iterable[Any]]) -> Callable[[Maker], Iterable[Any]]:
        """Declare inputs it must reject: the exception's type, a part of its message, and the arguments."""
        words.function(self.spec.name, "what yields inputs to reject", function)
        self.become(replace(self.spec, rejects=(*self.spec.rejects, function)))
        return function

    def cost(self, function: Callable[..., Cost]) -> Callable[..., Cost]:
        """Declare what a call must do at least, as a function of its arguments that returns `ow.Cost`. FlopCounterMode
        counts it; without it, what the reference does."""
        words.function(self.spec.name, "the cost", function)
        self.become(replace(self.spec, cost=function))
        return function

    def fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare what its results look like: a function of its parameters that returns tensors of the right shape,
        dtype and strides with anything in them. Compilers run it in the reference's place, so that a reference may
        look at values, loop over steps or leave PyTorch. Sizes that depend on values come from
        `torch.library.get_ctx().new_dynamic_size()`.

        Its gradients then look like its inputs, unless `op.backward.fake` says otherwise; `op.saving_form.fake` is
        for the form that saves. The check holds each against what the operator returns.

        >>> import torch, opwright as ow
        >>> @ow.op
        ... def through_numpy(x: torch.Tensor) -> torch.Tensor:
        ...     return torch.from_numpy(x.detach().numpy() ** 2)
        >>> @through_numpy.fake
        ... def _(x):
        ...     return torch.empty_like(x)
        >>> @through_numpy.gradient
        ... def _(grad, x):
        ...     return 2 * grad * x
        >>> torch.compile(through_numpy, backend="aot_eager", fullgraph=True)(torch.tensor([3.0]))
        tensor([9.])
        """
        fake.refuse_unfit(self.spec.name, self.spec.signature, function)
        self.become(replace(self.spec, fake=function))
        return function

    def bench(
        self,
        name: str,
        /,
        *,
        sizes: Sizes = (),
        at: int | Mapping[str, int] | None = None,
        compiled: bool = True,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare calls to measure: a function of `make` and a size that returns the arguments, as a sample does.
        `at` is the size that stands for them, the largest by default; both may be a dict by kind of device. Without
        sizes it takes `make` alone. Not `compiled`: the reference is not measured under torch.compile, which would
        take minutes for a long loop that it unrolls."""
        _refuse_label(self.spec.name, "its bench cases", name)
        words.flag(self.spec.name, "compiled", compiled)
        for kind in (kind for each in (sizes, at) if isinstance(each, Mapping) for kind in each):
            if kind not in DEVICES:
                hint = words.near(kind, DEVICES)
                raise ValueError(f"{self.spec.name}: there is no kind of device {kind!r} to measure on{hint}")

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            known = self.spec.families
            family = read_family(self.spec.name, known, name, function, sizes, at, compiled)
            self.become(replace(self.spec, families=(*known, family)))
            return function

        return declare

    def rival(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *,
        prepare: Callable[..., Any] | None = None,
        same: bool = True,
    ) -> None:
        """Name a function to be measured against: of the operator's arguments, or of what `prepare` makes of them
        outside the timing. Not the `same` function: shown for scale, and not compared."""
        words.flag(self.spec.name, "same", same)
        if prepare is not None:
            words.function(self.spec.name, "prepare", prepare)
        self._add_variant(Variant(name, "rival", function, prepare, same))

    def variant(self, name: str, function: Callable[..., Any], /) -> None:
        """Name another way to compute the operator, to be measured beside its kernels."""
        self._add_variant(Variant(name, "variant", function))

    def _add_variant(self, variant: Variant) -> None:
        _refuse_label(self.spec.name, "what is measured", variant.name)
        words.function(self.spec.name, variant.name, variant.function)
        refuse_taken(self.spec.name, self.spec.variants, variant.name)
        self.become(replace(self.spec, variants=(*self.spec.variants, variant)))

    def shard(
        self,
        patterns: str,
        /,
        *,
        over: str | Sequence[str] | None = None,
        sums: str | Sequence[str] = (),
        once: str | Sequence[str] = (),
        group: str | tuple[str, str] | None = None,
        across: str | Sequence[str] | None = None,
        whole: str | Sequence[str] = (),
    ) -> None:
        """Declare along which dimensions its tensors may be cut among devices, so that each runs the kernel on its own
        pieces of DTensors. `patterns` writes the shapes of inputs and results as a domain's sizes do; without inputs
        they are those of the first kernel's domain that has any. A dimension that inputs and results share cuts them
        together; along `sums` every device computes a summand of the result, in which the tensors `once` count once.
        `over` names the dimensions that may be cut, all by default. `group`: the parameter that names the process group
        in which the operator communicates by itself, and that which says how many processes it has, if there is one.
        `across` names the dimensions whose pieces it communicates between, all that may be cut by default: they are cut
        among the devices of the group that a call names, and are whole where it names none. `whole` names the results
        that every device has whole where they lack the dimension that is cut, such as statistics that it shares.

        The rules of its gradients follow. The check proves them all (property `sharding`).

        >>> import torch, opwright as ow
        >>> @ow.op
        ... def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ...     return x @ weight.t() + bias
        >>> project.shard("x[..., k] weight[n, k] bias[n] -> [..., n]", sums="k", once="bias")
        >>> project.shard("x[..., k] weight[n, k] bias[n] -> [..., n]", over="m")
        Traceback (most recent call last):
        ValueError: project: shard: over names the dimension 'm', which is in no input; there are k, n, ...
        """
        spec = self.spec
        if spec.random or any(p.mutated for p in spec.signature.parameters):
            raise TypeError(
                f"{spec.name}: shard is for operators that neither draw random numbers nor write to arguments"
            )
        read = shard.read(
            spec.name, patterns, over=over, sums=sums, once=once, group=group, across=across,
            whole=whole, signature=spec.signature,
            extras=() if spec.extras is None else spec.extras.names, domains=[k.domain for k in spec.kernels],
        )  # fmt: skip
        self.become(replace(spec, sharding=read))
        meshes.changed(cast("Op[..., Any]", self))

    # --- what was said --------------------------------------------------------------------------------------------

    @property
    def file(self) -> str | None:
        """The file that defines its reference."""
        return self.spec.file

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return self.spec.random

    @property
    def compile(self) -> Literal["call", "inline"]:
        """What torch.compile does with it where it has kernels."""
        return self.spec.compile

    @property
    def autocast(self) -> tuple[str, ...] | None:
        """The tensors that autocast casts; None: it sees the reference."""
        return self.spec.autocast

    @property
    def surrogate(self) -> bool:
        """Whether its declared gradient differs from the derivative of its reference on purpose."""
        return self.spec.formula is not None and self.spec.formula.surrogate

    @property
    def has_cost(self) -> bool:
        """Whether its author has said what a call must do at least."""
        return self.spec.cost is not None

    @property
    def declared(self) -> SimpleNamespace:
        """What its author has said about measuring it: `families` of calls, and `variants` to compare with."""
        return SimpleNamespace(families=self.spec.families, variants=self.spec.variants)


def _refuse_label(op: str, what: str, name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{op}: {what} must have a name, a string, got {name!r}")
