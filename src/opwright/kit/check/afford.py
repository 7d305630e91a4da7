"""What a case of sizes that no author chose may cost: it must not take the reference long, nor all memory."""

from __future__ import annotations

from typing import Any

import torch

from opwright.kit import private
from opwright.kit.check.case import Case
from opwright.kit.check.report import NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import copied, rebuilt

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


def _asks(change: str) -> float:
    """The number that a change makes of an option; 0 of others."""
    _, equal, text = change.partition("=")
    try:
        return abs(float(text.removeprefix("="))) if equal else 0.0
    except ValueError:
        return 0.0


def _quick(op: Op[..., Any], sample: Sample) -> bool:
    """Whether the reference is done with a small call, of which an option may say how many steps it takes."""
    try:
        with torch.no_grad(), _Counted(1 << 20):
            given = copied(sample)
            op.reference(*given.args, **given.kwargs)
    except _TooMuch:
        return False
    except Exception:
        return True  # which the case itself will say
    return True


def enough(op: Op[..., Any], sample: Sample, case: Case) -> None:
    """A case of sizes that the author did not choose must not take the reference long."""
    if any(_asks(part) > 64 for part in case.values.split("+")) and not _quick(op, sample):
        raise NotApplicable("the reference would take long")
    vast, elements = case.variant == "vast", most_elements(sample)
    large = elements > 1 << 12 or _longest(sample) > 1 << 8  # long is enough for a loop over it
    if vast or "=" in case.variant:
        most = 1 << 26 if vast else 1 << 22
    elif case.variant and "=" in case.values:
        most = 1 << 24  # an option may say how many times as large the results are
    elif case.variant and elements > 1 << 20:
        most = 1 << 26
    else:
        return
    if large and not affordable(op, sample, most):
        raise NotApplicable("the reference would take long")
