"""What a call takes of the device's memory: its peak, and what stays for the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwright.kit.spec.values import tensors


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """The most memory a call held at once, beyond what was held before it."""
    return _peak_on_cuda(call, device) if device.type == "cuda" else _peak_on_cpu(call)


def _peak_on_cuda(call: Callable[[], Any], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    kept = call()
    torch.cuda.synchronize(device)
    del kept
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(call: Callable[[], Any]) -> int:
    """From PyTorch's own allocator, which says to the profiler what it gives and takes. What a library mallocs by
    itself (MKL's scratch) is not seen."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True, acc_events=True) as profile:
        kept = call()
    del kept
    assert profile.profiler is not None
    found = profile.profiler.kineto_results.events()
    moves = sorted((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")
    held = peak = 0
    for _, change in moves:
        held += change
        peak = max(peak, held)
    return peak


def kept_bytes(call: Callable[[], Any], inputs: Any) -> tuple[int, int]:
    """The bytes that autograd keeps alive for the backward of a call: of all tensors, and of those that are not
    among its inputs. A tensor kept twice counts once."""
    storages: dict[int, int] = {}
    alive = []  # a storage that dies could lend its address to the next

    def pack(t: Tensor) -> Tensor:
        try:
            storage = t.untyped_storage()
        except NotImplementedError:  # sparse tensors have several
            storages[id(t)] = sum(part.nbytes for part in _parts(t))
            alive.append(t)
            return t
        storages[storage._cdata] = storage.nbytes()
        alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = call()
    own = {t.untyped_storage()._cdata for t in tensors(inputs) if t.layout == torch.strided}
    del result
    return sum(storages.values()), sum(n for key, n in storages.items() if key not in own)


def _parts(t: Tensor) -> list[Tensor]:
    if t.layout == torch.sparse_coo:
        return [t._indices(), t._values()]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    return [t.ccol_indices(), t.row_indices(), t.values()]
