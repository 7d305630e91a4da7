"""What stands for an operator where a function is held against another: calls of it run the candidate in its process,
and what the check asks of an operator's reference it asks of the one beside it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from opwright.kit.check.judge.arena import lies_in
from opwright.kit.check.judge.child import flat, form
from opwright.kit.check.judge.process import Charge
from opwright.kit.check.judge.stand import Answer, Own, Raised, Stand
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.schema import Output, Parameter, Signature
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import copied

if TYPE_CHECKING:
    from opwright.kit.op import Op


class Likeness:
    """A candidate with its reference, as the properties of the check see operators. It has no name in the dispatcher,
    no schema and no gradient of its own."""

    kernels: tuple[Any, ...] = ()
    random = has_rung = has_declared_gradient = recorded_by_reference = is_gradient = surrogate = False
    parent = form_of = None
    role = SimpleNamespace(below=None, takes_caches=False)

    def __init__(
        self,
        name: str,
        reference: Callable[..., Any],
        samples: Callable[..., Any],
        parameters: tuple[Parameter, ...],
        deterministic: bool,
    ) -> None:
        self.name = self.qualname = name
        self.reference = reference
        self.deterministic = deterministic
        self.home = self.recorded_form = self
        self.signature = Signature(parameters, (Output(None, parameters[0].kind),))
        self.spec = SimpleNamespace(samples=(samples,), written=tuple(p for p in parameters if p.mutated))
        self.calls = SimpleNamespace(direct=self._direct, seen_through=self._direct)
        self.stand: Stand | None = None
        self._form: Any = None

    @property
    def as_op(self) -> Op[..., Any]:
        """Itself, for who expects an operator."""
        return cast("Op[..., Any]", self)

    def choose(self, values: dict[str, Any]) -> tuple[str, str]:
        """What takes a call: the candidate, whatever it is."""
        return self.name, ""

    def _direct(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The reference's results, without what it has written to."""
        written = self.written(Sample(args, kwargs))
        given = self.reference(*args, **kwargs)
        out, self._form = flat(given), form(given)
        return [r for r in out if not (written and r is None) and not any(_is_same(r, w) for w in written)]

    def written(self, sample: Sample) -> list[Tensor]:
        """The tensors of a call that it writes to."""
        values = self.signature.bind(sample.args, sample.kwargs)
        return [t for p in self.signature.parameters if p.mutated for t in tensors(values.get(p.name))]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        try:
            return self._called(*args, **kwargs)
        except Raised:
            raise
        except Exception as e:
            raise Own(e) from e

    def _called(self, *args: Any, **kwargs: Any) -> list[Any]:
        assert self.stand is not None
        sample = Sample(args, kwargs)
        leaves = [t for v in (*args, *kwargs.values()) for t in tensors(v) if t.requires_grad]
        if leaves and torch.is_grad_enabled():
            return list(_Through.apply(self.stand, sample, *leaves))  # type: ignore[no-untyped-call]
        written = self.written(sample)
        answer = self.stand.call(sample, written=written)
        self._refuse_other_form(sample, answer.form, bool(written))
        if not written:
            self._refuse_borrowed(sample, answer)
            return list(answer.results)
        given = list({id(t): t for v in (*args, *kwargs.values()) for t in tensors(v)}.values())
        return [
            r
            for r, which in zip(answer.results, answer.aliases, strict=True)
            if r is not None and not (0 <= which < len(given) and any(given[which] is w for w in written))
        ]

    def _refuse_other_form(self, sample: Sample, got: Any, writes: bool) -> None:
        """Results are nested as the reference's are. What only writes may hand out what it wrote to."""
        if got == self._form:
            return
        own = copied(sample)  # the reference's last call was perhaps another
        try:
            with torch.no_grad():
                expected = form(self.reference(*own.args, **own.kwargs))
        except Exception:
            return
        if got != expected and not (writes and expected == "None"):
            raise Charge("wrong values", f"it gives {_said(got)} where the reference gives {_said(expected)}")

    def _refuse_borrowed(self, sample: Sample, answer: Answer) -> None:
        """A result in an argument's memory is wrong where the reference gives one of its own: who writes to it writes
        to the argument."""
        if max(answer.within, default=-1) < 0:
            return
        own = copied(sample)
        try:
            with torch.no_grad():
                expected = flat(self.reference(*own.args, **own.kwargs))
        except Exception:
            return
        values = self.signature.bind(own.args, own.kwargs)
        given = [(name, t) for name, v in values.items() for t in tensors(v)]
        for i, (r, got, within) in enumerate(zip(expected, answer.results, answer.within, strict=False)):
            if within >= 0 and _is_equal(r, got) and not any(lies_in(r, t) for _, t in given):
                which = "its result" if len(expected) == 1 else f"its result {i}"
                whose = given[within][0] if within < len(given) else "an argument"
                raise Charge("cheats", f"{which} lies in the memory of {whose}, and the reference's has its own")


class _Through(torch.autograd.Function):
    """A call that the candidate's process records, and differentiates when it is asked to."""

    @staticmethod
    def forward(ctx: Any, stand: Stand, sample: Sample, *leaves: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        answer = stand.call(sample, recorded=True)
        ctx.stand = stand
        there = [r for r in answer.results if r is not None]
        plain = [r for r, recorded in zip(there, answer.recorded, strict=True) if not recorded]
        ctx.mark_non_differentiable(*plain)
        return tuple(answer.results)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = ctx.stand.backward([g for g in grads if g is not None])
        return (None, None, *found)


def _is_same(r: Any, t: Tensor) -> bool:
    return r is t or (isinstance(r, Tensor) and r.shape == t.shape and t.numel() > 0 and r.data_ptr() == t.data_ptr())


def _is_equal(a: Any, b: Any) -> bool:
    """Whether values are right to the bit; where they are not, that is the mistake."""
    tensor = isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype
    return tensor and torch.equal(a.nan_to_num(), b.to(a.device).nan_to_num())


def _said(nested: Any) -> str:
    if isinstance(nested, list):
        return f"a list of ({', '.join(map(_said, nested))})"
    if isinstance(nested, dict):
        return f"a dict of ({', '.join(f'{k}: {_said(v)}' for k, v in nested.items())})"
    return str(nested)
