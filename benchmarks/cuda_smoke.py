"""Smoke: build, compare, time, tune. Run as PYTHONPATH=src python benchmarks/cuda_smoke.py"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
VARIANT = """
import sys, torch, opwright as ow
def ms(f, rounds=30):
    for _ in range(3): f()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(rounds)]
    for a, b in pairs:
        a.record(); f(); b.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in pairs)[rounds // 2]
n = 2**27
row = []
with torch.inference_mode():
    for dtype in (torch.float32, torch.bfloat16):
        x, y, g = (torch.randn(n, device="cuda").to(dtype) for _ in range(3))
        out = torch.empty_like(x)
        copy = 2 * x.nbytes / ms(lambda: out.copy_(x))
        k, b = (o.kernels[1].ready(o) and o.kernels[1].overload for o in (ow.axpby, ow.axpby.backward))
        row.append(f"copy {copy/1e9:.3f} TB/s; fwd {3*x.nbytes/ms(lambda: k(x, y, a=2.0, b=3.0))/copy:.4f}"
                   f" add {3*x.nbytes/ms(lambda: torch.add(x, y, alpha=2))/copy:.4f}"
                   f" one {2*x.nbytes/ms(lambda: b(g, x, y, a=2.0, b=3.0, wanted=[True, False]))/copy:.4f}"
                   f" mul {2*x.nbytes/ms(lambda: x * 2.0)/copy:.4f}")
        del x, y, g, out
print(sys.argv[1], *row, sep="\\n    ", flush=True)
"""
CHECK = """
import time, torch
t = time.perf_counter(); import opwright as ow
x = torch.ones(8, device="cuda"); torch.cuda.synchronize()
t = time.perf_counter(); ow.axpby(x, x, a=2); torch.cuda.synchronize(); print("cold build + first call:", time.perf_counter() - t)
print(ow.explain(ow.axpby, x, x))
from opwright.kit import native; print("native:", native.available())
bad = 0
def close(got, want, dtype):
    global bad
    tol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    ok = got.shape == want.shape and got.stride() == want.stride() and torch.allclose(got.double(), want.double(), rtol=tol, atol=tol)
    bad += not ok
    return ok
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    r = lambda *s: torch.randn(*s, device="cuda", dtype=torch.float64).to(dtype)
    cases = dict(one=(r(1), r(1)), odd=(r(1001), r(1001)), big=(r(1 << 20), r(1 << 20)), off=(r(1001)[1:], r(1001)[:-1]),
      matrix=(r(128, 256), r(128, 256)), t=(r(256, 128).t(), r(128, 256)), tt=(r(256, 128).t(), r(256, 128).t()),
      row=(r(128, 256), r(256)), col=(r(128, 256), r(128, 1)), outer=(r(63, 1), r(65)), scalar=(r(), r(5)), empty=(r(0, 3), r(3)),
      slice=(r(100, 100)[:, :64], r(100, 64)), step=(r(100, 100)[:, ::2], r(100, 50)), cl=(r(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), r(3, 1, 1)),
      six=(r(2, 3, 1, 5, 2, 3).permute(5, 0, 3, 1, 4, 2), r(3, 2, 5, 3, 2, 1)), expand=(r(1, 64).expand(32, 64), r(32, 64)))
    for name, (a, b) in cases.items():
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        got = ow.axpby(a, b, a=2.0, b=-0.5); want = 2.0 * a + -0.5 * b
        if not close(got, want, dtype): print("WRONG", dtype, name, got.stride(), want.stride())
        g = torch.randn_like(want)
        for p, q in zip(torch.autograd.grad(got, (a, b), g), torch.autograd.grad(want, (a, b), g)):
            if not close(p, q, dtype): print("WRONG grad", dtype, name, p.stride(), q.stride())
print("wrong:", bad)
s = torch.cuda.Stream()
a = torch.zeros(1 << 26, device="cuda"); torch.cuda.synchronize()
with torch.cuda.stream(s):
    torch.cuda._sleep(200_000_000); a.fill_(1.0); out = ow.axpby(a, a)
s.synchronize(); print("stream ok:", bool((out == 2).all()))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): out = ow.axpby(x, x, a=3)
x.fill_(2.0); graph.replay(); torch.cuda.synchronize(); print("graph ok:", out.tolist()[0] == 8.0)
big = torch.ones((1 << 31) + 5, device="cuda", dtype=torch.bfloat16); o = ow.axpby(big, big); print("large:", o[-1].item(), bool((o[-10:] == 2).all())); del big, o
big = torch.ones(3, (1 << 30), device="cuda", dtype=torch.bfloat16)[:, ::2]; o = ow.axpby(big, big); print("large strided:", o.float().sum().item() == 2 * o.numel()); del big, o
def us(f, n=3000):
    best = 1e9
    for _ in range(7):
        torch.cuda.synchronize(); t = time.perf_counter()
        for _ in range(n): f()
        best = min(best, (time.perf_counter() - t) / n)
    torch.cuda.synchronize(); return best * 1e6
p, q = torch.randn(2, 16, device="cuda")
with torch.inference_mode():
    print("host us: axpby", us(lambda: ow.axpby(p, q, a=2.0)), "ops", us(lambda: torch.ops.opwright.axpby(p, q, a=2.0)), "add", us(lambda: torch.add(p, q, alpha=2.0)))
print("host us, autograd on: axpby", us(lambda: ow.axpby(p, q, a=2.0)), "add", us(lambda: torch.add(p, q, alpha=2.0)))
m, v, c = torch.randn(8192, 8192, device="cuda"), torch.randn(8192, device="cuda"), torch.randn(8192, 1, device="cuda")
def ms(f, rounds=20):
    for _ in range(3): f()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(rounds)]
    for a, b in pairs:
        a.record(); f(); b.record()
    torch.cuda.synchronize(); return sorted(a.elapsed_time(b) for a, b in pairs)[rounds // 2]
with torch.inference_mode():
    for name, (a, b) in dict(t=(m.t(), m), row=(m, v), col=(m, c), step=(m[:, ::2], m[:, 1::2]), off=(m.view(-1)[1:], m.view(-1)[:-1])).items():
        print(name, "ms: ours", ms(lambda: ow.axpby(a, b, a=2.0)), "torch", ms(lambda: torch.add(a, b, alpha=2.0)))
        a, b = a.bfloat16(), b.bfloat16()
        if name == "t": a = m.bfloat16().t()
        print(name, "bf16 ms: ours", ms(lambda: ow.axpby(a, b, a=2.0)), "torch", ms(lambda: torch.add(a, b, alpha=2.0)))
"""
INLINE = '''
import time, torch
from torch.utils.cpp_extension import load_inline
cuda = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
template <class T> __global__ void k(const T* x, const T* y, T* o, float a, float b, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; if (i < n) o[i] = T(a * float(x[i]) + b * float(y[i])); }
at::Tensor axpby(at::Tensor x, at::Tensor y, double a, double b) {
  auto o = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "axpby", [&] {
    k<scalar_t><<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.const_data_ptr<scalar_t>(), y.const_data_ptr<scalar_t>(), o.mutable_data_ptr<scalar_t>(), a, b, x.numel()); });
  return o; }
"""
t = time.perf_counter()
m = load_inline("inline_axpby", "at::Tensor axpby(at::Tensor x, at::Tensor y, double a, double b);", cuda, functions=["axpby"])
print("load_inline cold:", time.perf_counter() - t)
'''


def run(code: str, *arguments: str, wait: bool = True, **env: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", **env}
    p = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    if wait:
        print(p.communicate()[0], flush=True)
    return p


def main() -> None:
    for command in (["nvidia-smi"], ["nvcc", "--version"], ["g++", "--version"], ["lscpu"]):
        print("\n".join(subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[:14]), flush=True)
    cold = "/tmp/smoke-cold"
    t = time.perf_counter()
    run("import time; t=time.perf_counter(); import opwright as ow; ow.axpby.build('cuda'); print('cold axpby alone', time.perf_counter() - t)", OPWRIGHT_CACHE_DIR=cold)
    print("with process", time.perf_counter() - t)
    run(INLINE, TORCH_CUDA_ARCH_LIST="9.0")
    waiting = [run("from opwright.kit import native; native.build()", wait=False)]
    names = [(t, f, s) for t in (128, 256, 512) for f in (2, 4, 8) for s in (0, 3)]
    names = [n for n in names if n[0] == 256 or n[1] == 4]
    envs = {n: {"OPWRIGHT_NVCCFLAGS": f"-DOPWRIGHT_THREADS={n[0]} -DOPWRIGHT_IN_FLIGHT={n[1]} -DOPWRIGHT_STREAM={n[2]}"} for n in names}
    build = "import opwright as ow; ow.axpby.build('cuda')"
    t = time.perf_counter()
    waiting += [run(build, wait=False, **e) for e in envs.values()]
    for p in waiting:
        p.communicate()
    print(f"{len(waiting)} builds at once: {time.perf_counter() - t:.1f} s")
    run(CHECK)
    for name, e in envs.items():
        run(VARIANT, str(name), **e)
    small = "import torch, opwright as ow; x = torch.ones(1001, device='cuda'); ow.axpby(x[1:], x[:-1]); ow.axpby(x, x); ow.axpby(torch.ones(33, 65, device='cuda').t(), x[:33]); torch.cuda.synchronize()"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    t = time.perf_counter()
    done = subprocess.run(["compute-sanitizer", "--tool", "memcheck", sys.executable, "-c", small], env=env, capture_output=True, text=True)
    print(f"memcheck {time.perf_counter() - t:.1f} s", done.stdout[-600:], done.stderr[-300:], flush=True)


if __name__ == "__main__":
    main()
