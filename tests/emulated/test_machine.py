"""The machine that kernels for CUDA run on here: it gives what a GPU gives, and finds what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests import emulated

KERNELS = """
#include <cooperative_groups.h>
#include <opwright/kernel.h>

// Each block turns its 64 numbers around.
template <bool waits>
__global__ void turn(const float* x, float* out) {
    __shared__ float all[64];
    const int64_t first = int64_t(blockIdx.x) * 64;
    all[threadIdx.x] = x[first + threadIdx.x];
    if (waits) __syncthreads();
    out[first + threadIdx.x] = all[63 - threadIdx.x];
}
Tensor turned(const Tensor& x, bool waits) {
    Tensor out = empty(x, dtype(x));
    launch(waits ? turn<true> : turn<false>, {x.numel() / 64, 64}, data<const float>(x), data<float>(out));
    return out;
}

__global__ void sums(const float* x, float* out) {
    extern __shared__ float more[];
    const float mine = x[blockIdx.x * 96 + threadIdx.x + 32 * threadIdx.y], sum = block_sum(mine);
    more[threadIdx.x + 32 * threadIdx.y] = warp_sum(mine);
    __syncthreads();
    const int half = __popc(__ballot_sync(~0u, mine > 0));
    const float other = __shfl_xor_sync(~0u, mine, 8, 8), next = __shfl_down_sync(~0u, mine, 1);
    if (threadIdx.x + threadIdx.y > 0) return;
    float* const to = out + blockIdx.x * 8;
    to[0] = sum, to[1] = more[0], to[2] = more[32], to[3] = more[64], to[4] = half, to[5] = other, to[6] = next;
    to[7] = gridDim.x;
}
Tensor summed(const Tensor& x) {
    Tensor out = empty({x.numel() / 96, 8}, dtype(x));
    launch(sums, {x.numel() / 96, dim3(32, 3), 96 * 4}, data<const float>(x), data<float>(out));
    return out;
}

__global__ void last(float* out) { *out = blockIdx.x * 1000 + threadIdx.x; }
Tensor last_of_all(const Tensor& x) {
    Tensor out = empty({1}, dtype(x));
    launch(last, {50, 50}, data<float>(out));
    return out;
}

__global__ void faulty(int64_t which, const float* x, float* out) {
    extern __shared__ float more[];
    __shared__ float all[64];
    const int me = threadIdx.x;
    all[me] = 0;
    if (which == 1 && me < 40) __syncthreads();
    if (which == 2) {
        if (me < 40)
            __syncthreads();
        else
            __syncthreads();
    }
    if (which == 3) me < 40 ? __syncthreads() : __syncwarp();
    if (which == 4 && me < 40) return;
    if (which == 4) *out = __shfl_sync(~0u, *x, 0);
    if (which == 5) all[me + 1] = *x;
    if (which == 6) *reinterpret_cast<float4*>(out) = *reinterpret_cast<const float4*>(x + me);
    if (which == 7) more[me] = *x;
    if (which == 8) __trap();
    if (which == 9) *out = me < 3 ? __shfl_sync(~0u, *x, 0) : __shfl_xor_sync(~0u, *x, 1);
}
void faults(const Tensor& x, int64_t which) {
    launch(faulty, {2, 64, 63 * 4}, which, data<const float>(x), data<float>(x));
}

__global__ void fill(float* out, int64_t n) {
    extern __shared__ float more[];
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) more[i] = i;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) out[n - 1 - i] = more[i];
}
// Each block adds up its 64 numbers, and then what all blocks have found to each of its own, which it has kept.
__global__ void wait_for_all(const float* x, float* parts, float* out, int64_t leaves) {
    __shared__ float all[64];
    extern __shared__ float kept[];
    const int me = threadIdx.x;
    all[me] = kept[me] = x[blockIdx.x * 64 + me];
    __syncthreads();
    for (int i = 0; me == 0 && i < 64; ++i) parts[blockIdx.x] += all[i];
    if (blockIdx.x == leaves && me < 32) return;
    cooperative_groups::this_grid().sync();
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += parts[i];
    out[blockIdx.x * 64 + me] = kept[me] + sum;
}
void together(const Tensor& x, const Tensor& parts, const Tensor& out, int64_t leaves) {
    const Grid grid{x.numel() / 64, 64, 64 * 4};
    float *p = data<float>(parts), *to = data<float>(out);
    const float* const from = data<const float>(x);
    check(ow_inner::launch_at_once(wait_for_all, grid, from, p, to, leaves), "the blocks do not all fit");
}
Tensor filled(const Tensor& x, int64_t threads) {
    Tensor out = empty(x, dtype(x));
    launch(fill, {1, dim3(threads), x.numel() * 4}, data<float>(out), x.numel());
    return out;
}
"""
FAULTS = {
    1: r"24 of its threads ended without __syncthreads in line \d+",
    2: r"its threads meet in __syncthreads in line (\d+) and in __syncthreads in line (?!\1)\d+",
    3: r"its threads wait for each other for ever, 40 in __syncthreads .*24 in __syncwarp.*0 of 64 have ended",
    4: r"lane 8 reads in __shfl_sync in line \d+ from lane 0, which is not there",
    5: r"thread \(63, 0, 0\) has the index 64 beyond an array \(.*, line \d+\)",
    6: r"thread \(1, 0, 0\) takes at once what is not aligned for that",
    7: r"wrote behind its dynamic shared memory",
    8: r"thread \(0, 0, 0\) ended by __trap\(\)",
    9: r"lanes of a warp meet in __shfl_\w+ in line \d+ and in __shfl_\w+ in line \d+",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    names = ("turned", "summed", "last_of_all", "faults", "filled", "together")
    return emulated.functions(tmp_path_factory.mktemp("machine"), KERNELS, *names)


def test_threads_share_memory_and_meet(made: Any, seed: int) -> None:
    x = torch.randn(5 * 64)
    assert torch.equal(made.turned(x, True), x.view(5, 64).flip(1).flatten())
    x = torch.randint(-9, 9, (4, 3, 32)).float()
    got = made.summed(x.flatten())
    want = [x.sum((1, 2)), *x.sum(2).t(), (x[:, 0] > 0).sum(1), x[:, 0, 0], x[:, 0, 1], torch.full((4,), 4)]
    assert torch.equal(got, torch.stack([w.float() for w in want], 1))


def test_what_nobody_has_written_to_shared_memory_is_nan(made: Any) -> None:
    x = torch.randn(3 * 64)
    for _ in range(2):  # nor is it what a block or a launch before has left there
        assert made.turned(x, False).view(3, 64).isnan()[:, :32].all()


def test_what_hangs_on_an_order_is_found_by_another(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made.last_of_all(torch.ones(1)).item() == 49049
    found = set()
    for seed in range(1, 6):
        monkeypatch.setenv("EMULATED_SEED", str(seed))
        found.add(made.last_of_all(torch.ones(1)).item())
    assert len(found) > 2


@pytest.mark.parametrize("which", FAULTS)
def test_a_fault_is_an_error_that_says_where(made: Any, which: int) -> None:
    x = torch.ones(256)
    made.faults(x, 0)
    for _ in range(2):  # and the next launch is as good as new
        with pytest.raises(RuntimeError, match=f"^emulated kernel, .*{FAULTS[which]}"):
            made.faults(x, which)
    made.faults(x, 0)


def test_blocks_wait_for_each_other(made: Any, seed: int) -> None:
    x, parts, out = torch.randint(-9, 9, (7 * 64,)).float(), torch.zeros(7), torch.zeros(7 * 64)
    made.together(x, parts, out, -1)
    assert torch.equal(out, x + x.sum())
    with pytest.raises(RuntimeError, match=r"32 of its threads ended without the grid's barrier"):
        made.together(x, parts, out, 3)
    made.together(x, parts.zero_(), out.zero_(), -1)
    assert torch.equal(out, x + x.sum())


def test_blocks_that_do_not_all_fit_are_not_launched(made: Any) -> None:
    x = torch.ones(132 * 32 * 64 + 64)
    out = torch.zeros_like(x)
    with pytest.raises(RuntimeError, match="the blocks do not all fit"):
        made.together(x, torch.zeros(x.numel() // 64), out, -1)
    assert not out.any()


def test_a_launch_gets_the_shared_memory_that_a_gpu_has(made: Any) -> None:
    for n in (1000, 12288, 12289, 58112):
        assert torch.equal(made.filled(torch.ones(n), 256), torch.arange(n).flip(0).float())
    with pytest.raises(RuntimeError, match="a block has 232448 bytes of shared memory beside the kernel's own here"):
        made.filled(torch.ones(58113), 256)
    with pytest.raises(
        RuntimeError, match=r"the launch failed: invalid configuration argument.*threads \(4096, 1, 1\)"
    ):
        made.filled(torch.ones(8), 4096)


def test_what_has_no_meaning_in_cpp_is_refused(tmp_path: Path) -> None:
    for text in ('asm("bar.sync 0;");', "kernel<<<1, 32>>>(x);"):
        with pytest.raises(ValueError, match="nobody said what this is in C\\+\\+"):
            emulated.translated(text)
