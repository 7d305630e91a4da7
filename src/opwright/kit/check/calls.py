"""Calling an operator or its reference with a sample, and what comes out: results, then whatever was written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.check.cases import Case
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.check.screen import screen
from opwright.kit.op import Op
from opwright.kit.spec.probe import BadReference
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, Results, rebuilt


def flat(out: Any) -> Results:
    """The tensors of a result; None where an optional one is absent."""
    if out is None or isinstance(out, Tensor):
        return [out]
    return [t for o in out for t in flat(o)] if isinstance(out, (list, tuple)) else []


def results_of(op: Op[..., Any], function: Callable[..., Any], sample: Sample) -> Results:
    """Call and collect. Nothing is recorded."""
    with torch.no_grad():
        out = function(*sample.args, **sample.kwargs)
    return collect(op, out, sample)


def collect(op: Op[..., Any], out: Any, sample: Sample) -> Results:
    """The results of a call, and the tensors it wrote to."""
    values = op.signature.bind(sample.args, sample.kwargs)
    written = [t for p in op.signature.parameters if p.mutated for t in tensors(values.get(p.name))]
    return [*(flat(out) if op.signature.outputs else []), *written]


def reference_of(op: Op[..., Any]) -> Callable[[Sample], Results]:
    """The reference, with arguments converted as the operator converts them. On a GPU once the CPU takes it."""
    screened = False

    def run(sample: Sample) -> Results:
        nonlocal screened
        if not screened:
            screen(op, sample)
        screened = True
        return results_of(op, op.calls.direct, sample)

    return run


def attempt(op: Op[..., Any], sample: Sample, *, lenient: bool = False) -> Results:
    """The operator's results. That it raises is a finding, since the reference did not; not where it is `lenient`, for
    options that no sample leads to: PyTorch takes some that make no sense, and a kernel may say so."""
    try:
        return results_of(op, op, sample)
    except torch.OutOfMemoryError:
        raise  # which is for the property to judge
    except Exception as e:
        if lenient:
            raise NotApplicable(f"the operator refuses it: {first_line(e)}") from None
        raise Finding(f"it raised {type(e).__name__} where the reference gives a result: {first_line(e)}") from None


def accepted(make: Callable[[], Any]) -> Any:
    """What the reference gives; a case that it rejects says nothing here."""
    try:
        return make()
    except (NotApplicable, Finding):
        raise
    except BadReference as e:
        raise Finding(first_line(e)) from None
    except Exception as e:
        raise NotApplicable(f"{REJECTED}: {first_line(e)}") from None


REJECTED = "the reference rejects it"
"""How the reason begins when a call is one that the reference does not take."""


def in_range(oracle: Oracle, case: Case) -> None:
    """With values that the author did not choose, the reference's own steps must stay within their dtypes' range."""
    if case.values and not oracle.fits:
        raise NotApplicable("the reference's own steps leave the range of their dtype")


MOST_CALLS = 2000
"""Operations of PyTorch's that a reference may take in a case of large sizes."""


class _TooMuch(Exception):
    """A reference takes more than a case is worth."""


class _Counted(private.TorchDispatchMode):
    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.calls, self.made = most, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        self.made += sum(t.numel() for t in tensors(out))
        if self.calls > MOST_CALLS or self.made > self.most:
            raise _TooMuch
        return out


def affordable(op: Op[..., Any], sample: Sample, most: int) -> bool:
    """Whether the reference makes no more than so many elements of a large call: no table of all pairs, no loop over
    all of them. Found out without memory, where its shapes do not depend on values."""
    mode = private.fake_tensor_mode()
    try:
        with private.unlogged_fakes(), mode, torch.no_grad(), _Counted(most):
            faked = rebuilt(sample, mode.from_tensor)
            op.reference(*faked.args, **faked.kwargs)
    except _TooMuch:
        return False
    except Exception:
        return most_elements(sample) <= most >> 8
    return True


def most_elements(sample: Sample) -> int:
    """Those of the largest tensor of a call."""
    return max((t.numel() for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)), default=0)


def _longest(sample: Sample) -> int:
    values = (*sample.args, *sample.kwargs.values())
    return max((size for v in values for t in tensors(v) for size in t.shape), default=0)


def enough(op: Op[..., Any], sample: Sample, case: Case) -> None:
    """A case of sizes that the author did not choose must not take the reference long."""
    vast, elements = case.variant == "vast", most_elements(sample)
    large = elements > 1 << 12 or _longest(sample) > 1 << 8  # long is enough for a loop over it
    if vast or "=" in case.variant:
        most = 1 << 26 if vast else 1 << 22
    elif case.variant and (elements > 1 << 18 or "=" in case.values):
        most = 1 << 24  # an option may say how many times as large the results are
    else:
        return
    if large and not affordable(op, sample, most):
        raise NotApplicable("the reference would take long")


def depends_on_values(function: Callable[..., Any], sample: Sample) -> bool:
    """Whether the shape of what a function makes cannot be told from shapes alone."""
    mode = private.fake_tensor_mode()
    try:
        with private.unlogged_fakes(), mode, torch.no_grad():
            faked = rebuilt(sample, mode.from_tensor)
            function(*faked.args, **faked.kwargs)
    except private.fake_errors():
        return True
    except Exception:
        return False
    return False


def first_line(e: BaseException) -> str:
    """The first line of an error's text."""
    return (str(e).strip().splitlines() or [""])[0][:200]
