"""The operator: a reference and everything that belongs to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from opwright.kit import locks
from opwright.kit.declare import Declarations
from opwright.kit.derive import behaviour, derive, forms
from opwright.kit.derive.roles import Gradient, Role, SavingForm
from opwright.kit.dispatch import bind, compiled, fake, register, registry, running, script
from opwright.kit.dispatch.kernel import Kernel
from opwright.kit.spec import probe
from opwright.kit.spec.captured import digest
from opwright.kit.spec.domain import Cost
from opwright.kit.spec.extras import Extras
from opwright.kit.spec.held import Operator
from opwright.kit.spec.operator import Spec
from opwright.kit.spec.samples import Maker, Reject, Sample, read_reject

P = ParamSpec("P")
R = TypeVar("R")

_making = locks.settled(locks.MAKING)


class Op(Declarations, Operator, Generic[P, R]):
    """An operator. Call it as you would call its reference.

    >>> import torch, opwright as ow
    >>> ow.axpby(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0]), a=2)
    tensor([6., 9.])
    >>> ow.axpby.schema
    'axpby(Tensor x, Tensor y, *, Scalar a=1, Scalar b=1) -> Tensor'
    """

    _call: Callable[P, R]
    _short: Any
    _next_rung: derive.Rung | derive.Missing
    _backward: Op[..., Any]

    def __init__(self, spec: Spec, role: Role = Role()) -> None:
        self.spec, self.role = spec, role
        self.name, self.namespace, self.qualname = spec.name, spec.namespace, spec.qualname
        self.signature, self.reference, self.origin = spec.signature, spec.reference, spec.origin
        self.saving_form: Op[..., Any] | None = None
        """The form that returns outputs and extra results, an operator of its own with kernels of its own."""
        self.stood: str | None = None
        """Its digest when it was first called."""
        self.outdated = False
        """Whether it was defined again when something else stood in what its reference names."""
        self.called = False
        """Whether it was called through the dispatcher."""
        self._carried: dict[str, Any] = {}
        """What was declared of its gradient operator, for the next one."""
        self.kernels: list[Kernel] = []
        self.state = probe.State(
            role.spoken(spec.name), spec.signature, spec.reference, spec.random, gradient=role.is_gradient
        )
        self.calls: bind.Calls
        self.registered: Any = None
        """What the dispatcher has under its name, once somebody wants it there."""
        self.defined = False  # until all of it is there, which other threads wait for
        self.__name__ = self.__qualname__ = spec.name
        self.__doc__ = spec.doc or spec.reference.__doc__
        self.__module__ = getattr(spec.reference, "__module__", __name__)
        self.__wrapped__ = spec.reference
        if role.is_gradient or spec.signature.returns_input:
            self.__signature__ = spec.signature.python()
        if role.is_gradient:
            bind.write(self)
        else:
            self.define()

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self.namespace}::{self.schema}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return registry.recall, (self.qualname,)

    def __copy__(self) -> Op[P, R]:
        return self

    def __deepcopy__(self, memo: object) -> Op[P, R]:
        return self

    @property
    def overload(self) -> Any:
        """What the dispatcher has under its name. A gradient that PyTorch sees through is put there when somebody asks
        for it: most are never called by name, and a name costs more than the rest of an operator."""
        self.define()
        return self.registered

    def define(self) -> bool:
        """Put it into the dispatcher, unless it is there."""
        if self.defined:
            return True
        with _making:
            if self.registered is None:
                register.register(self)
                script.teach(self)
                self.defined = True
        return True  # the constant that Dynamo keeps

    # --- what its author said ----------------------------------------------------------------------------------

    @property
    def schema(self) -> str:
        """The schema under which the dispatcher knows it."""
        return self.signature.schema(self.name)

    @property
    def has_declared_gradient(self) -> bool:
        """Whether its author wrote its gradient, rather than leaving it to be derived."""
        return (self.form_of or self).spec.formula is not None

    @property
    def definition(self) -> tuple[Any, ...]:
        """All that its author said about what it computes."""
        return compiled.definition(self.home)

    @property
    def digest(self) -> str:
        """A hash of its definition, the same in every process."""
        return digest(*self.definition)

    def become(self, spec: Spec, rung: derive.Rung | None = None) -> None:
        """Take a new spec of the same reference: what followed from the old one is dropped, and the new one bound.
        `rung`: the gradient that follows from it, where somebody knows."""
        before, self.spec = self.spec, spec
        kept = {name: value for name, value in self.__dict__.items() if name in ("_next_rung", "_backward")}
        same, lost = spec.differentiates_like(before), dict[str, Any]()
        shapes_follow = self.role.below is None  # its gradient looks like its inputs
        if not same or (shapes_follow and spec.fake is not before.fake):
            for name in kept:
                del self.__dict__[name]
            self.called = False
            former = kept.get("_backward")
            declared = self._carried if former is None else {n: v for n, v in former.spec.declared.items() if v}
            self._carried, lost = (declared, lost) if same else ({}, declared)
        if rung is not None:
            self.__dict__.setdefault("_next_rung", rung)
        if spec.runs_like(before):
            return
        try:
            bind.bind(self)
        except BaseException:  # a declaration that cannot be leaves the operator as it was
            self.spec = before
            self.__dict__.pop("_next_rung", None)
            self.__dict__.update(kept)
            raise
        if self._carried:
            self.define_gradient()
        if lost:
            what = f"what was declared of {self.name}_backward ({', '.join(lost)}) was for the former one"
            why = f"opwright: {self.name}: its gradient has changed, and {what}; declare it again, after the gradient"
            warnings.warn(why, RuntimeWarning, stacklevel=3)

    def save(self, extras: Extras) -> None:
        """Take extra results, and make the form that returns them."""
        self.saving_form = Op(forms.saving(self.spec, extras), SavingForm(self))
        self.become(replace(self.spec, extras=extras))

    # --- what it is to others ----------------------------------------------------------------------------------

    @property
    def parent(self) -> Op[..., Any] | None:
        """The operator whose gradient this is."""
        return self.role.parent

    @property
    def form_of(self) -> Op[..., Any] | None:
        """The operator that this one computes together with extra results."""
        return self.role.form_of

    @property
    def functional(self) -> Op[..., Any] | None:
        """The operator that this one computes in place."""
        return self.role.functional

    @property
    def rung(self) -> derive.Rung | None:
        """What it computes where it is a gradient, and from what."""
        return self.role.rung

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient of another operator."""
        return self.role.is_gradient

    @property
    def home(self) -> Op[..., Any]:
        """The operator that all this belongs to; itself, unless it is a gradient or a form that saves."""
        return self if self.role.below is None else self.role.below.home

    @property
    def dependents(self) -> list[Op[..., Any]]:
        """The operators whose calls depend on its spec."""
        below = self.role.below
        written = [registry.find(f"{op.qualname}_") for op in (self, below) if op is not None]
        in_place = [op for op in written if op is not None and op.functional in (self, below)]
        return [op for op in (below, self.saving_form, *in_place) if op is not None]

    @property
    def ladder(self) -> list[Op[..., Any]]:
        """It, its form that saves, and the rungs above it that exist or have a kernel."""
        above = self.__dict__.get("_backward")
        own: list[Op[..., Any]] = [self, *([self.saving_form] if self.saving_form is not None else [])]
        return own if above is None else [*own, *above.ladder]

    @property
    def next_rung(self) -> derive.Rung | derive.Missing:
        """What its gradient takes and computes, or why there is none."""
        if self.form_of is not None:
            return self.form_of.next_rung
        if "_next_rung" not in self.__dict__:
            self._next_rung = self.role.gradient(self.spec, self.spec.formula)
        return self._next_rung

    @property
    def derivation(self) -> derive.Rung:
        """What the next rung saves and computes; TypeError where there is none."""
        found = self.next_rung
        if isinstance(found, derive.Missing):
            raise TypeError(found.reason)
        return found

    @property
    def differentiable_once(self) -> str | None:
        """Why this gradient has none of its own, where its author has declared so."""
        return self.role.why_once(self.name)

    @property
    def recorded_form(self) -> Op[..., Any]:
        """What runs when a gradient will be wanted: the form that saves, if the gradient takes extra results."""
        if self.saving_form is not None and self.derivation.extras is not None:
            return self.saving_form
        return self

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

    def define_gradient(self) -> None:
        """Define its gradient operator, where there is one, so that it can be found by name."""
        owner = self.form_of or self
        if owner.has_rung:
            owner._make_rung()

    def _make_rung(self) -> bool:
        with _making:  # two threads may want it first, and it is one object
            if "_backward" in self.__dict__:
                return True
            rung = self.derivation
            made: Op[..., Any] = Op(forms.gradient(self.spec, rung), Gradient(self, rung))
            if self._carried:
                made.become(replace(made.spec, **self._carried))
                self._carried = {}
            if made.qualname in registry.entries:
                made.define()  # whoever asks by name shall find this one
            self._backward = made
        return True  # the constant that Dynamo keeps

    # Dynamo shall run these, not trace them: what torch.compiler.assume_constant_result does, without the import of
    # Dynamo. Methods, since before torch 2.13 such a function takes constants alone.
    define._dynamo_marked_constant = _make_rung._dynamo_marked_constant = True  # type: ignore[attr-defined]

    # --- how its calls behave ----------------------------------------------------------------------------------

    @property
    def opaque(self) -> bool:
        """Whether a call is one call to the dispatcher, and one node in graphs. An operator without kernels is
        transparent: calling it runs its reference, which PyTorch sees through."""
        return behaviour.opaque(self.spec, self.role, None if self.saving_form is None else self.saving_form.spec)

    @property
    def seen_through_by_compilers(self) -> bool:
        """Whether a formula is all that makes it one call: compiled graphs hold what both are made of."""
        return behaviour.formula_is_seen_through(self.spec)

    @property
    def recorded_by_reference(self) -> bool:
        """Whether autograd records what the reference does, rather than one node with the next rung behind it."""
        return behaviour.recorded_by_reference(self.spec, self.opaque, lambda: self.next_rung)

    @property
    def shapes(self) -> Callable[..., Any] | None:
        """The function that says what its results look like; None: the reference does."""
        return fake.of_gradient(self) if self.follows_shapes else self.spec.fake

    @property
    def follows_shapes(self) -> bool:
        """Whether it is a gradient whose results look like the inputs of an operator that declares shapes."""
        return self.parent is self.home and self.home.spec.fake is not None and self.spec.fake is None

    def build(self, device: str | None = None, *, force: bool = False) -> None:
        """Build and load its kernels now; after a change to their source, the new ones take over. Those for CUDA
        where there is a GPU, or where `device` says so."""
        for kernel in self.kernels:
            wanted = kernel.device == device if device else kernel.device != "cuda" or torch.cuda.is_available()
            if kernel.library is not None and wanted:
                kernel.library.load(again=True, force=force)
                kernel.ready(self)

    reload = build  # by the name that a notebook's reader looks for

    @property
    def deterministic(self) -> bool:
        """Whether the same call gives the same bits, and so its gradients'."""
        return self.home.spec.deterministic

    def draw_samples(self, make: Maker) -> list[Sample]:
        """The samples for the dtype, device and layout of `make`; those of a gradient come from its operator."""
        return self.role.samples(self, make)

    def draw_rejects(self, make: Maker) -> list[Reject]:
        """The inputs it must reject."""
        return [read_reject(self.name, r) for declared in self.spec.rejects for r in declared(make)]

    def cost_of(self, *args: Any, **kwargs: Any) -> Cost | None:
        """What a call with these arguments must do at least; None where its author has not said."""
        if self.spec.cost is None:
            return None
        found: object = self.spec.cost(**self.signature.bind(args, kwargs))
        if found is not None and not isinstance(found, Cost):
            raise TypeError(f"{self.name}: its cost must be an ow.Cost(bytes=…, flops=…), got {type(found).__name__}")
        return found

    # --- what the dispatcher calls -----------------------------------------------------------------------------

    def run_reference(self, *args: Any, **kwargs: Any) -> Any:
        """The reference behind the dispatcher's name; its results are memory of their own."""
        return running.reference(self, args, kwargs)

    def run_differentiated(self, *args: Any, **kwargs: Any) -> Any:
        """The reference, for PyTorch to differentiate as it goes."""
        return running.differentiated(self, args, kwargs)

    def run_transformed(self, *args: Any, **kwargs: Any) -> Any:
        """What torch.func's transforms and autocast take apart: the reference, with a declared gradient behind it."""
        return running.transformed(self, args, kwargs)

    def run_rejecting(self, *args: Any, **kwargs: Any) -> Any:
        """Raise what the reference raises for these arguments."""
        return fake.rehearse(self, args, kwargs)

    def run_unrouted(self, *args: Any, **kwargs: Any) -> Any:
        """What C++ has no kernel for: the reference, unless there is a kernel that C++ does not know."""
        return running.unrouted(self, args, kwargs)

    def run_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel whose domain holds the call, else the reference."""
        return running.kernel(self, args, kwargs)

    @property
    def truth(self) -> Callable[..., Any]:
        """What its derivatives are derivatives of: its reference; for a gradient that takes extra results, the same
        as a function of the inputs alone."""
        return self.role.truth(self)

    def choose(self, arguments: dict[str, Any]) -> tuple[Kernel | None, list[tuple[Kernel, str]]]:
        """The kernel for a call, None for the reference, and why the others do not take it."""
        refused: list[tuple[Kernel, str]] = []
        for kernel in self.kernels:
            why = kernel.refuses(self, arguments)
            if why is None:
                return kernel, refused
            refused.append((kernel, why))
        return None, refused
