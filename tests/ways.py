"""Every way of using an operator, each compared with the plain function.

A way takes the operator's function, the plain one, and tensors to call both with. It raises when they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from tests.calling import (
    Function,
    differentiable,
    gradients,
    near,
    over_floats,
    real,
    same,
    scalar,
    strides,
    watched,
    way,
)

SLOW = {"inductor", "inductor, dynamic", "autocast, compiled", "autocast, transformed"}
COMPILERS = {"aot_eager", "aot_eager, dynamic", "export", "make_fx", *SLOW}
TWICE = {"func.hessian", "func.jacrev(jacrev)", "func.jacrev(jacfwd)", "func.grad(grad)", "func.jvp of vjp"}


# --- plain calls -----------------------------------------------------------------------------------------------


@way("call")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    same(f(*given), g(*given), "call", layout=True, like=f)


@way("no_grad and inference_mode")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    inputs = differentiable(given)
    with torch.no_grad():
        same(f(*inputs), g(*inputs), "no_grad", layout=True, like=f)
        assert not any(t.requires_grad for t in f(*inputs))
    with torch.inference_mode():
        same(f(*given), g(*given), "inference_mode", layout=True, like=f)
        inside = [t.clone() for t in given]
        same(f(*inside), g(*given), "inference_mode, tensors made inside", layout=True, like=f)


@way("fake tensors")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    with FakeTensorMode() as mode:
        fake = f(*[mode.from_tensor(t) for t in given])
        with torch.inference_mode():
            below = f(*[mode.from_tensor(t) for t in given])
    for out in (fake, below):
        for got, expected in zip(out, g(*given), strict=True):
            assert (got.dtype, got.shape, got.device) == (expected.dtype, expected.shape, expected.device)
            assert strides(got) == strides(expected)


@way("meta device")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    for got, expected in zip(f(*[t.to("meta") for t in given]), g(*given), strict=True):
        assert (got.dtype, got.shape, got.device.type) == (expected.dtype, expected.shape, "meta")


@way("autocast")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    device = next((t.device.type for t in given), "cpu")
    with torch.autocast(device, dtype=torch.bfloat16):
        same(f(*given), g(*given), "autocast", like=f)
        same(gradients(f, given), gradients(g, given), "gradients under autocast")


# --- autograd --------------------------------------------------------------------------------------------------


@way("gradients")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    same(gradients(f, given), gradients(g, given), "gradients")


@way("second and third derivatives")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    for order in (2, 3):
        if order == 3 and any(t.dtype == torch.float32 for t in given):
            continue  # its rounding differs with the order of the sums; float64 tells
        same(gradients(f, given, order), gradients(g, given, order), f"derivatives of order {order}", order=order)


@way("checkpoint")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    def recomputed(*inputs: Tensor) -> tuple[Tensor, ...]:
        out: tuple[Tensor, ...] = checkpoint(f, *inputs, use_reentrant=False)
        return out

    same(gradients(recomputed, given), gradients(g, given), "gradients under checkpoint")
    device = next((t.device.type for t in given), "cpu")
    with torch.autocast(device, dtype=torch.bfloat16):
        same(gradients(recomputed, given), gradients(f, given), "gradients under checkpoint and autocast")


@way("batched gradients")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    results = []
    which = next((i for i, o in enumerate(g(*differentiable(given))) if o.requires_grad), None)
    if which is None:
        return
    for function in (f, g):
        inputs = differentiable(given)
        out = function(*inputs)[which]
        batch = torch.stack([torch.ones_like(out), torch.full_like(out, 2.0), torch.zeros_like(out)])
        results.append(torch.autograd.grad(out, watched(inputs), batch, is_grads_batched=True, allow_unused=True))
    same(results[0], results[1], "is_grads_batched")


@way("forward mode")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    tangents = [torch.rand_like(t) if t.is_floating_point() or t.is_complex() else None for t in given]
    results = []
    for function in (f, g):
        with torch.autograd.forward_ad.dual_level():
            duals = [
                t if v is None else torch.autograd.forward_ad.make_dual(t, v)
                for t, v in zip(given, tangents, strict=True)
            ]
            results.append([torch.autograd.forward_ad.unpack_dual(o).tangent for o in function(*duals)])
    same(results[0], results[1], "tangents")


# --- torch.func ------------------------------------------------------------------------------------------------


def _each(f: Function, g: Function, given: list[Tensor], name: str, apply: Callable[..., Any]) -> None:
    """Apply a transform to the losses of both and compare what it gives."""
    if not real(given):
        return
    results = []
    for function in (f, g):
        loss, floats = over_floats(function, given)
        results.append(torch.utils._pytree.tree_leaves(apply(loss, floats)))
    same(results[0], results[1], name, order=2 if name in TWICE else 1)


def _transform(name: str, apply: Callable[[Callable[..., Any], tuple[int, ...]], Callable[..., Any]]) -> None:
    @way(name)
    def _(f: Function, g: Function, given: list[Tensor]) -> None:
        _each(f, g, given, name, lambda loss, floats: apply(loss, tuple(range(len(floats))))(*floats))


_transform("func.grad", lambda loss, n: torch.func.grad(loss, n))
_transform("func.jacrev", lambda loss, n: torch.func.jacrev(loss, n))
_transform("func.jacfwd", lambda loss, n: torch.func.jacfwd(loss, n))
_transform("func.hessian", lambda loss, n: torch.func.hessian(loss, n))
_transform("func.jacrev(jacrev)", lambda loss, n: torch.func.jacrev(torch.func.jacrev(loss, n), n))
_transform("func.jacrev(jacfwd)", lambda loss, n: torch.func.jacrev(torch.func.jacfwd(loss, n), n))
_transform("func.grad(grad)", lambda loss, n: _grad_of_grad(loss, n))


def _with(function: Callable[..., Tensor], given: list[Tensor], i: int, t: Tensor) -> Tensor:
    """A function of one of its tensors."""
    return function(*given[:i], t, *given[i + 1 :])


@way("func.grad of one")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    """The others are captured, and autograd follows them: a module's parameters, for one."""
    if not real(given):
        return
    for i in [i for i, t in enumerate(given) if t.is_floating_point()][:3]:
        results = []
        for function in (f, g):
            of_one = partial(_with, scalar(function), differentiable(given), i)
            several = torch.stack([given[i], given[i]])
            found = [torch.func.grad(of_one)(given[i]), torch.func.vmap(torch.func.grad(of_one))(several)]
            results.append([*found, *gradients(function, given)])  # and autograd does what it did
        same(results[0], results[1], "func.grad of one")


def _grad_of_grad(loss: Callable[..., Tensor], n: tuple[int, ...]) -> Callable[..., Any]:
    def inner(*values: Tensor) -> Tensor:
        found = torch.func.grad(loss, n)(*values)
        return torch.stack([(d * d).sum().double() for d in found]).sum()

    return torch.func.grad(inner, n)


def _stacked(given: list[Tensor]) -> list[Tensor]:
    return [torch.stack([t, t.flip(0) if t.dim() else t, t]) for t in given]


@way("func.vmap")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    batch = _stacked(given)
    if not batch:
        return
    expected = [torch.stack(outs) for outs in zip(*[g(*row) for row in zip(*batch, strict=True)], strict=True)]
    same(torch.func.vmap(f)(*batch), expected, "vmap")
    one = (0, *[None] * (len(given) - 1))
    same(torch.func.vmap(f, one)(batch[0], *given[1:]), torch.func.vmap(g, one)(batch[0], *given[1:]), "vmap of one")
    twice = [torch.stack([t, t]) for t in batch]
    same(torch.func.vmap(torch.func.vmap(f))(*twice), [torch.stack([e, e]) for e in expected], "vmap(vmap)")


@way("func.vmap with grad")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    def nest(loss: Callable[..., Tensor], floats: list[Tensor]) -> Any:
        batch, n = _stacked(floats), tuple(range(len(floats)))

        def summed(*values: Tensor) -> Tensor:
            total: Tensor = torch.func.vmap(loss)(*values).sum()
            return total

        return [
            torch.func.vmap(torch.func.grad(loss, n))(*batch),
            torch.func.grad(summed, n)(*batch),
            torch.func.vmap(torch.func.jacfwd(loss, n))(*batch),
        ]

    _each(f, g, given, "vmap(grad), grad(vmap), vmap(jacfwd)", nest)


@way("func.jvp of vjp")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    def nest(loss: Callable[..., Tensor], floats: list[Tensor]) -> Any:
        def pull(*values: Tensor) -> Any:
            out, back = torch.func.vjp(loss, *values)[:2]
            return back(torch.ones_like(out))

        return torch.func.jvp(pull, tuple(floats), tuple(torch.ones_like(t) for t in floats))

    _each(f, g, given, "func.jvp of vjp", nest)


# --- compilers -------------------------------------------------------------------------------------------------


def _compiled(name: str, backend: str, dynamic: bool | None) -> None:
    @way(name)
    def _(f: Function, g: Function, given: list[Tensor]) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
        same(compiled(*given), g(*given), name, layout=True)
        torch._dynamo.reset()
        same(gradients(compiled, given), gradients(g, given), f"gradients, {name}")
        with torch.inference_mode():
            same(compiled(*given), g(*given), f"{name}, inference mode")


_compiled("aot_eager", "aot_eager", None)
_compiled("aot_eager, dynamic", "aot_eager", True)
_compiled("inductor", "inductor", None)
_compiled("inductor, dynamic", "inductor", True)


@way("autocast, compiled")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    device = next((t.device.type for t in given), "cpu")
    given = [t.float() if t.dtype == torch.float64 else t for t in given]  # which autocast leaves as it is
    torch._dynamo.reset()
    with torch.autocast(device, dtype=torch.bfloat16):
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        same(compiled(*given), f(*given), "compiled under autocast")
        near(gradients(compiled, given), gradients(f, given), "gradients, compiled under autocast")


@way("autocast, transformed")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    given = [t.float() if t.dtype == torch.float64 else t for t in given]
    if not real(given):
        return
    with torch.autocast(given[0].device.type, dtype=torch.bfloat16):
        called = f(*given)
        if all(t.is_floating_point() for t in given):
            near(torch.func.vjp(f, *given)[0], called, "vjp")
            ours, theirs = (torch.func.vmap(h)(*[t[None] for t in given]) for h in (f, g))
            for a, b, c in zip(ours, theirs, called, strict=True):
                assert a.dtype in (b.dtype, c.dtype)  # PyTorch's own linear gives float32 here
                near([a[0].to(c.dtype)], [c], "vmap")
        loss, floats = over_floats(f, given)
        n = tuple(range(len(floats)))
        plain = gradients(f, given)
        near(torch.func.grad(loss, n)(*floats), plain, "func.grad")
        batched = torch.func.vmap(torch.func.grad(loss, n))(*[t[None] for t in floats])
        near([t[0] for t in batched], plain, "vmap of grad")


@way("export")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    class Module(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            return f(*inputs)

    if given:
        exported = torch.export.export(Module(), tuple(given))
        same(exported.module()(*given), g(*given), "export")
        same(exported.run_decompositions().module()(*given), g(*given), "export, decomposed")


@way("make_fx")
def _(f: Function, g: Function, given: list[Tensor]) -> None:
    for mode in ("real", "fake", "symbolic"):
        if mode == "symbolic" and any(t.numel() < 2 for t in given):
            continue  # sizes 0 and 1 are specialised and say nothing
        traced = make_fx(f, tracing_mode=mode)(*given)
        same(traced(*given), g(*given), f"make_fx, {mode}")
