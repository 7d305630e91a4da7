"""Calls that read integers on a GPU are tried on the CPU first.

There a bad index is an error; in PyTorch's kernels on a GPU it is the end of all its work in the process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.op import Op
from opwright.kit.spec.probe import BadReference
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import rebuilt

MOST_ELEMENTS = 1 << 20


class RejectedOnCpu(Exception):
    """The reference rejects a call on the CPU; what it would do on a GPU nobody asked."""


def reads_integers_on_gpu(sample: Sample) -> bool:
    """Whether the CPU can say of a call on a GPU that an index is bad, within a moment."""
    values = [*sample.args, *sample.kwargs.values()]
    given = [t for value in values for t in tensors(value)]
    whole = any(not (t.is_floating_point() or t.is_complex()) and t.dtype != torch.bool for t in given)
    elsewhere = any(isinstance(value, torch.device) for value in values)  # it would be told to use the GPU
    on_gpu = bool(given) and all(t.is_cuda and t.layout == torch.strided for t in given)
    return whole and on_gpu and not elsewhere and sum(t.numel() for t in given) < MOST_ELEMENTS


def screen(op: Op[..., Any], sample: Sample) -> None:
    """Raise RejectedOnCpu where the reference rejects such a call on the CPU."""
    if not reads_integers_on_gpu(sample):
        return
    there = rebuilt(sample, _on_cpu)
    try:
        with torch.no_grad(), private.without_modes():  # one that records the reference is not to record this
            op.calls.direct(*there.args, **there.kwargs)
    except BadReference:
        raise
    except Exception as e:
        raise RejectedOnCpu(f"{type(e).__name__}: {e}") from e


def _on_cpu(t: Tensor) -> Tensor:
    """The CPU has not all that a GPU has in half precisions."""
    return t.cpu().float() if t.dtype in (torch.float16, torch.bfloat16) else t.cpu()
