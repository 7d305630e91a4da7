"""What to write where a finding's cause is known by its looks."""

from __future__ import annotations

from torch import Tensor

from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.report import Finding
from opwright.kit.spec.samples import Sample


def advice(subject: Subject, name: str, case: Case, finding: Finding) -> str:
    """What an author may do about a finding, to be put behind its message; empty where nothing is known."""
    if name == "fake" and " strides " in finding.message and subject.has_kernel:
        return (
            "; the operand that a kernel's map names first decides on strides, as in the reference or formula: "
            'name them in its order, or declare the kernel for layout="contiguous"'
        )
    if name in ("gradients", "gradcheck") and case.dtype.is_complex:
        return (
            "; for complex numbers a gradient has the conjugate of the derivative (x.conj() in a formula); or refuse "
            "them in the reference: ow.require(not x.is_complex(), …)"
        )
    if name == "special" and finding.index is not None and finding.call is not None:
        values = values_at(subject, finding.call, finding.index)
        return f", where {values}" if values else ""
    return ""


def values_at(subject: Subject, call: Sample, index: list[int]) -> str:
    """What the tensors of a call hold at an element of its result: `grad[0, 3] = inf, x[3] = -0.0`."""
    words = []
    for name, value in subject.op.signature.bind(call.args, call.kwargs).items():
        if not isinstance(value, Tensor) or not 0 < value.dim() <= len(index):
            continue
        at = [0 if n == 1 else i for i, n in zip(index[-value.dim() :], value.shape, strict=True)]
        if all(i < n for i, n in zip(at, value.shape, strict=True)):
            words.append(f"{name}{at} = {value[tuple(at)].item():.6g}")
    return ", ".join(words)
