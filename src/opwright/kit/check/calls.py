"""Calling an operator or its reference with a sample, and what comes out: results, then whatever was written to."""

from __future__ import annotations

import contextlib
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
        # It was asked with copies, which lie closer together where the strides would take too much memory.
        with contextlib.suppress(torch.OutOfMemoryError):
            _refuse_rejected(op, sample)
        raise Finding(f"it raised {type(e).__name__} where the reference gives a result: {first_line(e)}") from None


def _refuse_rejected(op: Op[..., Any], sample: Sample) -> None:
    try:
        results_of(op, op.calls.direct, sample)
    except torch.OutOfMemoryError:
        raise
    except Exception as e:
        raise NotApplicable(f"{REJECTED}: {first_line(e)}") from None


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


def judge(oracle: Oracle, got: Results, case: Case, what: str = "result") -> None:
    """Raise Finding unless results are right; of values and sizes that the author did not choose, where they say
    anything."""
    try:
        oracle.judge(got, what)
    except Finding as f:
        if case.variant and f.overflows and not oracle.fits:
            raise NotApplicable("the reference's own steps come near the end of their dtype's range") from None
        if case.values and f.result is not None and oracle.chaotic(f.result):
            raise NotApplicable("rounding errors alone decide what the reference gives") from None
        if case.values and f.few and f.result is not None and oracle.asked_again(f.result):
            oracle.judge(got, what)
            return
        raise


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


def why_uncompilable(op: Op[..., Any], sample: Sample) -> str:
    """What to say beside a compiler's error where the reference looks at values; else nothing."""
    if not depends_on_values(op.reference, sample):
        return ""
    return "; its reference reads values of a tensor, of which a graph has none: say what it makes by @op.fake"


def first_line(e: BaseException) -> str:
    """The first line of an error's text."""
    return (str(e).strip().splitlines() or [""])[0][:200]
