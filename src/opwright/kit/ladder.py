"""The ladder: an operator's gradient is an operator, and so on as far as anyone asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from opwright.kit import locks
from opwright.kit.derive import derive
from opwright.kit.spec.extras import Extras, read_extras, saving_reference
from opwright.kit.spec.schema import Signature

if TYPE_CHECKING:
    from opwright.kit.op import Op


_making = locks.settled(locks.MAKING)


class Ladder:
    """What an operator knows of its derivatives."""

    name: str
    namespace: str
    origin: str
    signature: Signature
    reference: Callable[..., Any]
    random: bool
    parent: Op[..., Any] | None
    rung: derive.Rung | None
    form_of: Op[..., Any] | None
    saving_form: Op[..., Any] | None
    _asked_opaque: bool | None
    _extras: Extras | None
    _gradient: Callable[..., Any] | None
    _needs: Mapping[str, Sequence[str]] | None = None
    surrogate: bool = False
    """Whether its declared gradient differs from the derivative of its reference on purpose."""
    stood: str | None = None
    """Its digest when it was first called."""
    outdated: bool = False
    """Whether it was defined again when something else stood in what its reference names."""
    _rung_known: bool
    _derivation: derive.Rung | derive.Missing
    _backward: Op[..., Any]

    if TYPE_CHECKING:

        def _make(self, *args: Any, **kwargs: Any) -> Op[..., Any]: ...

    @property
    def home(self) -> Op[..., Any]:
        """The operator at the foot of the ladder; itself, unless it is a rung or a form that saves."""
        below = self.parent or self.form_of
        return cast("Op[..., Any]", self) if below is None else below.home

    @property
    def ladder(self) -> list[Op[..., Any]]:
        """It, its form that saves, and the rungs above it that exist or have a kernel."""
        above = self.__dict__.get("_backward")
        own = [cast("Op[..., Any]", self), *([self.saving_form] if self.saving_form is not None else [])]
        return own if above is None else [*own, *above.ladder]

    @property
    def next_rung(self) -> derive.Rung | derive.Missing:
        """What the next rung saves and computes, or why there is none."""
        if self.form_of is not None:
            return self.form_of.next_rung
        if "_derivation" not in self.__dict__:
            self._derivation = self._derive(self._gradient, self._needs)
        return self._derivation

    @property
    def derivation(self) -> derive.Rung:
        """What the next rung saves and computes; TypeError where there is none."""
        found = self.next_rung
        if isinstance(found, derive.Missing):
            raise TypeError(found.reason)
        return found

    def _derive(
        self, gradient: Callable[..., Any] | None, needs: Mapping[str, Sequence[str]] | None
    ) -> derive.Rung | derive.Missing:
        signature: Signature = self.signature
        reference: Callable[..., Any] = self.reference
        if self.rung is not None and self.rung.extras is not None:
            if self.rung.total is None:
                return derive.Missing(str(self.differentiable_once))
            signature, reference = self.rung.bare, self.rung.total
        of_gradient = self.rung is not None
        rung = derive.rung_above(self.name, signature, reference, gradient, self.random, self._extras, of_gradient)
        if needs is None or isinstance(rung, derive.Missing):
            return rung
        return derive.with_needs(self.name, signature, rung, needs)

    @property
    def differentiable_once(self) -> str | None:
        """Why this gradient has none of its own, where its author has declared so."""
        if self.rung is None or self.rung.extras is None or self.rung.total is not None:
            return None
        return (
            f"{self.name}_backward: there is no such rung, since {self.home.name} is declared differentiable once; "
            f"declare it with @{self.home.name}.saving(…) without once=True"
        )

    @property
    def recorded_form(self) -> Op[..., Any]:
        """What runs when a gradient will be wanted: the form that saves, if the gradient takes extra results."""
        if self.saving_form is not None and self.derivation.extras is not None:
            return self.saving_form
        return cast("Op[..., Any]", self)

    @property
    def has_rung(self) -> bool:
        """Whether there is a rung above it. An operator that writes, draws or has too many arguments has none, and
        differentiates all the same: autograd records what its reference does."""
        return isinstance(self.next_rung, derive.Rung)

    @property
    def rung_is_too_long(self) -> bool:
        """Whether the rung above would take more arguments than an operator can, as high rungs of broad operators
        would. Autograd then records what the reference does."""
        found = self.next_rung
        return isinstance(found, derive.Missing) and found.too_long

    @property
    def has_declared_gradient(self) -> bool:
        """Whether its author wrote its gradient, rather than leaving it to be derived."""
        return (self.form_of or self)._gradient is not None

    @property
    def backward(self) -> Op[..., Any]:
        """Its gradient, an operator like any other: `op.backward(grad, *inputs)`, with a `.backward` of its own.

        >>> import torch, opwright as ow
        >>> ow.cube.backward(torch.ones(2), torch.tensor([1.0, 2.0])).grad_x
        tensor([ 3., 12.])
        """
        if self.form_of is not None:
            return self.form_of.backward
        if "_backward" not in self.__dict__:
            self._make_rung()
        return self._backward

    def _make_rung(self) -> bool:
        with _making:  # two threads may want it first, and it is one object
            if "_backward" in self.__dict__:
                return True
            rung = self.derivation
            made = self._make(
                f"{self.name}_backward",
                rung.signature,
                rung.reference,
                namespace=self.namespace,
                origin=self.origin,
                random=False,
                opaque=self._asked_opaque,
                parent=self,
                rung=rung,
            )
            made.__doc__ = f"The gradient of {self.name}."
            self._backward = made
        return True  # the constant that Dynamo keeps

    # Dynamo shall run it, not trace it: what torch.compiler.assume_constant_result does, without the import of Dynamo.
    # A method, since before torch 2.13 such a function takes constants alone.
    _make_rung._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @overload
    def gradient(self, function: Callable[..., Any], /) -> Callable[..., Any]: ...

    @overload
    def gradient(
        self, /, *, needs: Mapping[str, Sequence[str]] | None = None, surrogate: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...

    def gradient(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        needs: Mapping[str, Sequence[str]] | None = None,
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

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            found = self._derive(function, needs)
            if isinstance(found, derive.Missing):
                raise TypeError(found.reason)
            self._gradient, self._needs, self.surrogate = function, needs, surrogate
            self._forget_rung()
            return function

        return declare if function is None else declare(function)

    def _forget_rung(self) -> None:
        self.__dict__.pop("_derivation", None)
        self.__dict__.pop("_backward", None)
        self._rung_known = False
        cast("Op[..., Any]", self)._choose_call()

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
        read = read_extras(self.name, self.signature, names, once, self.random, self.parent is not None)

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            extras = read(function)
            form = self._make(
                f"{self.name}_saving",
                extras.add_to(self.signature),
                saving_reference(self.name, self.signature, extras, function),
                namespace=self.namespace,
                origin=self.origin,
                opaque=self._asked_opaque,
                form_of=self,
            )
            form.__doc__ = f"{self.name}, and {', '.join(names)} for its gradient."
            self.saving_form, self._extras = form, extras
            self._forget_rung()
            return function

        return declare
