"""Runs every CUDA kernel of the library once a sample and layout: a program for compute-sanitizer to watch."""

from __future__ import annotations

import torch

import opwright as ow
from opwright.kit import register


def main() -> None:
    count = 0
    for op in register.operators():
        if not any(k.device == "cuda" for k in op.kernels):
            continue
        for dtype in (torch.float32, torch.bfloat16):
            for sample in op.draw_samples(ow.Maker(dtype, "cuda")):
                op(*sample.args, **sample.kwargs)
                count += 1
    for n in (1, 31, 257, 2049):
        x = torch.randn(n + 1, device="cuda")
        ow.axpby(x[1:], x[:-1])
        ow.cube(x.expand(3, n + 1).contiguous().t())
        ow.axpby(x[:-1].expand(37, n).contiguous().t(), torch.randn(n, 37, device="cuda"))
        count += 3
    torch.cuda.synchronize()
    print(f"{count} calls")


if __name__ == "__main__":
    main()
