"""torch.compile(fullgraph=True) gives the values and gradients of the reference, for fixed and dynamic sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from opwright.kit.check import derivatives
from opwright.kit.check.calls import accepted, first_line, reference_of, results_of, why_uncompilable
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties.opcheck import dense
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Oracle, Results, copied, rebuilt

PROPERTY = Property(turn=80)


def skip(subject: Subject) -> str | None:
    if subject.op.is_gradient:
        return "a gradient is compiled together with its operator"
    return "it draws random numbers" if subject.op.random else None


def cases(subject: Subject) -> Iterator[Case]:
    for backend in ("aot_eager", *(["inductor"] if subject.thorough else [])):
        most = 2 if subject.has_kernel else 1
        for case in subject.few(most):
            yield Case(case.sample, case.dtype, extra=backend)
            if case.sample == 0:
                yield Case(case.sample, case.dtype, "transposed", "tail", backend)
        if subject.count:
            yield Case(subject.count - 1, subject.main, "plain", "tail", f"{backend}-dynamic")


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = rebuilt(subject.draw(case), dense)
    oracle = accepted(lambda: Oracle(reference_of(op), sample, subject.seed))
    backend, _, dynamic = case.extra.partition("-")

    def compiled_of(function: Callable[..., Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        torch.compiler.reset()
        return torch.compile(call, fullgraph=True, backend=backend, dynamic=True if dynamic else None)

    compiled = compiled_of(op)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = results_of(op, compiled, copied(sample))
            # Inductor may compute the reference itself otherwise.
            also = partial(_reference, op, compiled_of, sample) if backend == "inductor" else None
            oracle.judge(got, "compiled result", also)
            _gradients(subject, sample, compiled)
    except Finding:
        raise
    except Exception as e:
        raise Finding(
            f"torch.compile raised {type(e).__name__}: {first_line(e)}{why_uncompilable(op, sample)}"
        ) from None
    finally:
        torch.compiler.reset()


def _reference(op: Op[..., Any], compiled_of: Callable[..., Any], sample: Sample) -> Results:
    return results_of(op, compiled_of(op.reference), copied(sample))


def _gradients(subject: Subject, sample: Any, compiled: Any) -> None:
    op = subject.op
    if not op.signature.differentiable_inputs or not derivatives.leaves_of(op, sample).leaves:
        return
    results = reference_of(op)(copied(sample))
    grads = derivatives.incoming(results, "dense", torch.Generator().manual_seed(subject.seed))
    packed = derivatives.pack(sample, grads)
    formula = derivatives.by_formula(op, 1) if op.has_rung and op.has_declared_gradient else None
    truth = derivatives.through(op, derivatives.truth_of(op, sample), 1)
    try:
        oracle = Oracle(truth, packed, subject.seed, formula)
    except Exception:
        return  # PyTorch cannot differentiate the reference, and `gradients` asks what the operator says then
    oracle.judge(derivatives.through(op, compiled, 1)(packed), "compiled gradient")
