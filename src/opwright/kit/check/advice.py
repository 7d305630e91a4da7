"""What to write where a finding's cause is known by its looks."""

from __future__ import annotations

from collections.abc import Sequence

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
    if name == "special" and finding.shape is not None and finding.call is not None:
        values = values_at(subject, finding.call, finding.index, finding.shape)
        return f", where {values}" if values else ""
    return ""


def values_at(subject: Subject, call: Sample, index: list[int], shape: Sequence[int]) -> str:
    """What the tensors of a call hold at an element of a result of some shape: `grad[0, 3] = inf, x[3] = -0.0`."""
    words = []
    for name, value in subject.op.signature.bind(call.args, call.kwargs).items():
        at = element_of(value.shape, index, shape) if isinstance(value, Tensor) else None
        if at is not None:
            words.append(f"{name}{at or ''} = {value[tuple(at)].item():.6g}")
    return ", ".join(words)


def element_of(own: Sequence[int], index: list[int], shape: Sequence[int]) -> list[int] | None:
    """The element of a tensor that goes into an element of a result: the one that broadcasts to it or, with fewer
    dimensions, the one of its row. None where it is neither, or could be two.

    >>> element_of([5], [2, 3], [4, 5]), element_of([4], [2, 3], [4, 5]), element_of([4, 1], [2, 3], [4, 5])
    ([3], [2], [2, 0])
    >>> element_of([4], [2, 3], [4, 4]), element_of([3, 5], [2, 3], [4, 5])
    (None, None)
    """
    count, found = len(own), set()
    if count > len(shape):
        return None
    for first in (0, len(shape) - count):
        sizes = list(zip(own, index[first : first + count], shape[first : first + count], strict=True))
        if all(n in (1, size) for n, _, size in sizes):
            found.add(tuple(0 if n == 1 else i for n, i, _ in sizes))
    return list(found.pop()) if len(found) == 1 else None
