"""The operator: a reference and everything that belongs to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import torch

from opwright.kit import kernel_files
from opwright.kit.build.plan import Options
from opwright.kit.derive import derive
from opwright.kit.dispatch import call, compiled, fake, formula, register, registry, running, script, short
from opwright.kit.dispatch.kernel import Kernel, refuse_device, refuse_parameters
from opwright.kit.ladder import Ladder
from opwright.kit.spec import probe
from opwright.kit.spec.captured import digest
from opwright.kit.spec.domain import Cost, Domain
from opwright.kit.spec.extras import Extras
from opwright.kit.spec.held import Operator
from opwright.kit.spec.measured import Declared, Sizes, Variant
from opwright.kit.spec.samples import Maker, Reject, Sample, read_reject, read_sample, samples_of_rung
from opwright.kit.spec.schema import Signature

P = ParamSpec("P")
R = TypeVar("R")


class Op(Ladder, Operator, Generic[P, R]):
    """An operator. Call it as you would call its reference.

    >>> import torch, opwright as ow
    >>> ow.axpby(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0]), a=2)
    tensor([6., 9.])
    >>> ow.axpby.schema
    'axpby(Tensor x, Tensor y, *, Scalar a=1, Scalar b=1) -> Tensor'
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        reference: Callable[P, R],
        *,
        namespace: str,
        origin: str,
        random: bool = False,
        opaque: bool | None = None,
        compile: Literal["call", "inline"] = "call",
        autocast: tuple[str, ...] | None = None,
        parent: Op[..., Any] | None = None,
        rung: derive.Rung | None = None,
        form_of: Op[..., Any] | None = None,
        functional: Op[..., Any] | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.qualname = f"{namespace}::{name}"
        self.signature = signature
        self.reference = reference
        self.origin = origin
        """Where it was defined: only the same place may define it again."""
        self.random = random
        self.parent = parent
        """The operator whose gradient this is."""
        self.rung = rung
        self.form_of = form_of
        """The operator that this one computes together with extra results."""
        self.functional = functional
        """The operator that this one computes in place."""
        self.saving_form: Op[..., Any] | None = None
        """The form that returns outputs and extra results, an operator of its own with kernels of its own."""
        self._extras: Extras | None = None
        self.kernels: list[Kernel] = []
        self._asked_opaque = opaque
        self.compile = compile
        self.autocast = autocast
        """The tensors that autocast casts; None: it sees the reference."""
        self._gradient: Callable[..., Any] | None = None
        self._fake: Callable[..., Any] | None = None
        self._followed: tuple[derive.Rung, Callable[..., Any]] | None = None
        self._rung_known = False
        self._samples: list[Callable[[Maker], Iterable[Any]]] = []
        self._rejects: list[Callable[[Maker], Iterable[Any]]] = []
        self._cost: Callable[..., Cost] | None = None
        self.declared = Declared()
        """What its author has said about measuring it."""
        self.__name__ = name
        self.__qualname__ = name
        self.__doc__ = reference.__doc__
        self.__module__ = getattr(reference, "__module__", __name__)
        self.__wrapped__ = reference
        if rung is not None or signature.returns_input:
            self.__signature__ = signature.python()
        self.file = inspect.getsourcefile(inspect.unwrap(reference)) if inspect.isfunction(reference) else None
        """The file that defines its reference."""
        # What a form that saves rejects, its operator rejects in its own name.
        spoken = name if form_of is None else form_of.name
        self._state = probe.State(spoken, signature, reference, random, gradient=rung is not None)
        self._direct = call.direct(self._state)
        self._call: Callable[P, R]
        self.overload: Any
        register.register(self, self._choose_call)
        script.teach(self)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(*args, **kwargs)

    def _make(self, *args: Any, **kwargs: Any) -> Op[..., Any]:
        return Op(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self.namespace}::{self.schema}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return registry.recall, (self.qualname,)

    def __copy__(self) -> Op[P, R]:
        return self

    def __deepcopy__(self, memo: object) -> Op[P, R]:
        return self

    @property
    def schema(self) -> str:
        """The schema under which the dispatcher knows it."""
        return self.signature.schema(self.name)

    @property
    def opaque(self) -> bool:
        """Whether a call is one call to the dispatcher, and one node in graphs. An operator without kernels is
        transparent: calling it runs its reference, which PyTorch sees through."""
        if self.rung is not None and self.rung.extras is not None:
            return True  # seen through, it would be differentiated with its caches held fast
        if self._asked_opaque is not None:
            return self._asked_opaque
        if self._fake is not None:
            return True  # its author says that compilers shall not look into it
        if self._gradient is not None:
            return True  # seen through, it would be differentiated by another formula than its author's
        return bool(self.kernels) or (self.saving_form is not None and bool(self.saving_form.kernels))

    @property
    def seen_through_by_compilers(self) -> bool:
        """Whether a formula is all that makes it one call: compiled graphs hold what both are made of."""
        lists = any(o.kind.is_list for o in self.signature.outputs)  # whose lengths a compiler would have to know
        return self._gradient is not None and not (
            self._asked_opaque is not None or self.kernels or self._fake or lists
        )

    @property
    def recorded_by_reference(self) -> bool:
        """Whether autograd records what the reference does, rather than one node with the next rung behind it."""
        if not self.opaque or self.rung_is_too_long:
            return True
        unfit = self.random or any(p.mutated for p in self.signature.parameters)
        return unfit and not self.has_rung

    def _choose_call(self) -> None:
        # Without a rung, a graph that holds the operator whole could not hold its gradient.
        written = any(p.mutated for p in self.signature.parameters)
        inline = self.compile == "inline" or self.random or (written and not self.has_rung)
        seen_through = self.kernels or self.seen_through_by_compilers
        whole = self.shapes is not None or (self.rung is not None and self.rung.extras is not None)
        inlined = self._asked_opaque is None and seen_through and not whole
        devices = frozenset(k.device for k in self.kernels) if inlined else None
        self._seen_through = self._inlined()
        seen, formula = self._seen_through, self._seen_through is not self._direct
        devices = frozenset() if inline else devices
        self._dispatched = call.dispatched(self.name, self.signature, self.overload, seen, devices, formula)
        if self.opaque:
            self._call = self._dispatched
        else:
            self._call = self._direct if self.rung is None else call.kept_by_export(self._direct, self._dispatched)
        self._short = short.way(self)
        if self.form_of is not None:
            self.form_of._choose_call()
        register.changed(self)

    @property
    def definition(self) -> tuple[Any, ...]:
        """All that its author said about what it computes."""
        return compiled.definition(self.home)

    @property
    def digest(self) -> str:
        """A hash of its definition, the same in every process."""
        return digest(*self.definition)

    def _inlined(self) -> Callable[..., Any]:
        """What PyTorch sees through in its place: its reference, with its declared gradient behind it."""
        if self._gradient is None or self.rung is not None:
            return self._direct
        rung = self.derivation
        if self._followed is None or self._followed[0] is not rung:  # kernels come and go, the formula stays
            saving = None if rung.extras is None or self._extras is None else self._extras.function
            self._followed = rung, formula.followed(self.name, self.signature, self._direct, rung, saving)
        return self._followed[1]

    # --- what belongs to it ------------------------------------------------------------------------------------

    def samples(self, function: Callable[[Maker], Iterable[Any]]) -> Callable[[Maker], Iterable[Any]]:
        """Declare inputs it must be right on: a generator that takes `make` and yields its arguments, a dict of
        keyword arguments last. `make(*shape)` gives a tensor of the dtype, device and layout under test."""
        self._samples.append(function)
        return function

    def rejects(self, function: Callable[[Maker], Iterable[Any]]) -> Callable[[Maker], Iterable[Any]]:
        """Declare inputs it must reject: the exception's type, a part of its message, and the arguments."""
        self._rejects.append(function)
        return function

    def cost(self, function: Callable[..., Cost]) -> Callable[..., Cost]:
        """Declare what a call must do at least, as a function of its arguments that returns `ow.Cost`."""
        self._cost = function
        return function

    @property
    def has_cost(self) -> bool:
        """Whether its author has said what a call must do at least."""
        return self._cost is not None

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
        fake.refuse_unfit(self.name, self.signature, function)
        self._fake = function
        self._choose_call()
        if self.form_of is None and self.parent is None:
            self._forget_rung()
        return function

    @property
    def shapes(self) -> Callable[..., Any] | None:
        """The function that says what its results look like; None: the reference does."""
        return fake.of_gradient(self) if self.follows_shapes else self._fake

    @property
    def follows_shapes(self) -> bool:
        """Whether it is a gradient whose results look like the inputs of an operator that declares shapes."""
        return self._fake is None and self.parent is not None and self.parent.rung is None and bool(self.parent._fake)

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

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            self.declared.add_family(self.name, name, function, sizes, at, compiled)
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
        self.declared.add_variant(self.name, Variant(name, "rival", function, prepare, same))

    def variant(self, name: str, function: Callable[..., Any], /) -> None:
        """Name another way to compute the operator, to be measured beside its kernels."""
        self.declared.add_variant(self.name, Variant(name, "variant", function))

    def kernel(self, device: str, domain: Domain = Domain(), /) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare a kernel for a kind of device; within its domain it runs in the reference's place."""

        domain.refuse_names(self.name, self.signature.names)
        refuse_device(self.name, device)

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            refuse_parameters(self.name, self.signature, function)
            name = getattr(function, "__name__", "kernel")
            self.kernels.append(Kernel(device, domain, name, function=function))
            self._choose_call()
            return function

        return declare

    def kernel_file(self, file: str, domain: Domain = Domain(), options: Options = Options()) -> None:
        """Declare a kernel that a source file beside the operator's own binds with OPWRIGHT_KERNEL. It is built
        when first needed. It is for CUDA when it is called `cuda`, or when it or one of its further sources is a
        `.cu` file; else for the CPU."""
        kernel_files.declare(self, file, domain, options)

    def kernel_files(
        self, *files: str, domain: Domain = Domain(), backward: Domain | None = None, options: Options = Options()
    ) -> None:
        """Declare the kernels of several files, for the calls in `domain`. With the domain of its gradient, `backward`,
        the files also hold the kernels of `op.backward`, and those of `op.saving_form` where it has one."""
        kernel_files.declare_all(self, files, domain, backward, options)

    def build(self, device: str | None = None, *, force: bool = False) -> None:
        """Build and load its kernels now; after a change to their source, the new ones take over. Those for CUDA
        where there is a GPU, or where `device` says so."""
        for kernel in self.kernels:
            wanted = kernel.device == device if device else kernel.device != "cuda" or torch.cuda.is_available()
            if kernel.library is not None and wanted:
                kernel.library.load(again=True, force=force)
                kernel.ready(self)

    reload = build  # by the name that a notebook's reader looks for

    def draw_samples(self, make: Maker) -> list[Sample]:
        """The samples for the dtype, device and layout of `make`; those of a rung come from the operator below."""
        if self.parent is not None and not self._samples:
            return samples_of_rung(self.parent, self, make)
        if self.form_of is not None and not self._samples:
            return self.form_of.draw_samples(make)
        return [read_sample(self.name, s) for declared in self._samples for s in declared(make)]

    def draw_rejects(self, make: Maker) -> list[Reject]:
        """The inputs it must reject."""
        return [read_reject(self.name, r) for declared in self._rejects for r in declared(make)]

    def cost_of(self, *args: Any, **kwargs: Any) -> Cost | None:
        """What a call with these arguments must do at least; None where its author has not said."""
        return None if self._cost is None else self._cost(**self.signature.bind(args, kwargs))

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
        """What its derivatives are derivatives of: its reference; for a rung that takes extra results, the gradient
        as a function of the inputs alone."""
        if self.rung is None or self.rung.total is None:
            return self.reference
        return lambda *args, **kwargs: running.without_caches(self, args, kwargs)

    def choose(self, arguments: dict[str, Any]) -> tuple[Kernel | None, list[tuple[Kernel, str]]]:
        """The kernel for a call, None for the reference, and why the others do not take it."""
        refused: list[tuple[Kernel, str]] = []
        for kernel in self.kernels:
            why = kernel.refuses(self, arguments)
            if why is None:
                return kernel, refused
            refused.append((kernel, why))
        return None, refused
