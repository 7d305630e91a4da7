"""Every way of using an operator, each compared with the plain function.

A way takes the operator's function, the plain one, and tensors to call both with. It raises when they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import opwright as ow
from opwright.kit.spec.values import tensors
from tests.losses import Losses

Function = Callable[..., tuple[Tensor, ...]]
Way = Callable[[Function, Function, list[Tensor]], None]
WAYS: dict[str, Way] = {}
SLOW = {"inductor", "inductor, dynamic", "autocast, compiled", "autocast, transformed"}
COMPILERS = {"aot_eager", "aot_eager, dynamic", "export", "make_fx", *SLOW}
TWICE = {"func.hessian", "func.jacrev(jacrev)", "func.jacrev(jacfwd)", "func.grad(grad)", "func.jvp of vjp"}


def way(name: str) -> Callable[[Way], Way]:
    def add(function: Way) -> Way:
        WAYS[name] = function
        return function

    return add


@dataclass(frozen=True)
class Case:
    """A call as a function of its tensors alone: `over(f)` is f with everything else filled in."""

    sample: ow.Sample

    @property
    def tensors(self) -> list[Tensor]:
        found = [t for value in (*self.sample.args, *self.sample.kwargs.values()) for t in tensors(value)]
        # A tensor that stands for its shape alone shares one element, which transforms could not write to.
        return [torch.ones_like(t.contiguous()) if 0 in t.stride() and t.numel() > 1 else t.detach() for t in found]

    def over(self, function: Callable[..., Any], exact: bool = False) -> Function:
        """The call of `function`; `exact` where it must agree to the bit: no kernel or formula runs in its place."""

        def fill(value: Any, feed: list[Tensor]) -> Any:
            if isinstance(value, Tensor):
                return feed.pop(0)
            return [fill(v, feed) for v in value] if isinstance(value, list) else value

        def call(*given: Tensor) -> tuple[Tensor, ...]:
            feed = list(given)
            args = [fill(v, feed) for v in self.sample.args]
            kwargs = {k: fill(v, feed) for k, v in self.sample.kwargs.items()}
            return tuple(tensors(function(*args, **kwargs)))

        call.exact = exact  # type: ignore[attr-defined]
        return call


def same(
    got: Any, expected: Any, what: str, *, layout: bool = False, like: Function | None = None, order: int = 1
) -> None:
    """The two hold the same tensors. An absent gradient equals one of zeros, as autograd's own sums have it.
    To the bit where `like` is exact."""
    exact = 0.0 if getattr(like, "exact", False) else None
    got, expected = list(got), list(expected)
    assert len(got) == len(expected), f"{what}: {len(got)} results, expected {len(expected)}"
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        if g is None or e is None:
            other = e if g is None else g
            assert other is None or not other.any(), f"{what}: result {i} is {g}, expected {e}"
            continue
        assert g.dtype == e.dtype, f"{what}: result {i} is {g.dtype}, expected {e.dtype}"
        assert g.shape == e.shape, f"{what}: result {i} has shape {g.shape}, expected {e.shape}"
        if layout:
            assert strides(g) == strides(e), f"{what}: result {i} has strides {g.stride()}, expected {e.stride()}"
        rtol = atol = exact
        if order > 1 and e.dtype == torch.float32 and e.numel():
            # What cancels in a second derivative keeps the rounding of its largest terms.
            rtol, atol = 1.3e-6, 1e-5 * max(1.0, e.abs().max().item())
        if Losses.now is not None and exact is None and e.is_floating_point():
            if Losses.now.measuring:
                Losses.now.note(what, i, (g - e).detach())
                continue
            rtol, atol = 1.3e-6, (atol or 1e-5) + Losses.TIMES * Losses.now.found[what, i]
        try:
            torch.testing.assert_close(g, e, equal_nan=True, rtol=rtol, atol=atol)
        except AssertionError as differs:
            raise AssertionError(f"{what}: result {i}: {differs}") from None


def strides(t: Tensor) -> list[int] | None:
    """Those that say where an element lies."""
    return [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] if t.numel() > 1 else None


def differentiable(given: list[Tensor]) -> list[Tensor]:
    return [t.clone().requires_grad_() if t.is_floating_point() or t.is_complex() else t for t in given]


def watched(given: list[Tensor]) -> list[Tensor]:
    return [t for t in given if t.requires_grad]


def scalar(function: Function) -> Callable[..., Tensor]:
    """The function as one real number that depends on every output unevenly."""

    def loss(*given: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for out in function(*given):
            if out.is_floating_point() or out.is_complex():
                out = torch.view_as_real(out.resolve_conj()) if out.is_complex() else out
                weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
                total = total.to(out.device) + (out * weights).sum().double() + (out * out).sum().double() / 2
        return total

    return loss


def gradients(function: Function, given: list[Tensor], order: int = 1) -> list[Tensor | None]:
    inputs = differentiable(given)
    loss = scalar(function)(*inputs)
    nothing: list[Tensor | None] = [None] * len(watched(inputs))
    if not nothing or not loss.requires_grad:
        return nothing
    found = torch.autograd.grad(loss, watched(inputs), create_graph=order > 1, allow_unused=True)
    for _ in range(order - 1):
        live = [g for g in found if g is not None and g.requires_grad]
        if not live:
            return nothing
        loss = torch.stack(
            [torch.view_as_real(g.resolve_conj()).square().sum() if g.is_complex() else g.square().sum() for g in live]
        )
        found = torch.autograd.grad(loss.sum(), watched(inputs), create_graph=True, allow_unused=True)
    return list(found)


def real(given: list[Tensor]) -> bool:
    """Whether torch.func's real-valued transforms apply: there is something to differentiate, all of it real."""
    floats = [t for t in given if t.is_floating_point()]
    empty = any(t.numel() == 0 for t in floats)  # torch's own jacfwd fails on empty tensors
    return bool(floats) and not empty and not any(t.is_complex() for t in given)


def over_floats(function: Function, given: list[Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The loss as a function of the floating-point tensors alone, and those tensors."""
    floats = [t for t in given if t.is_floating_point()]

    def loss(*values: Tensor) -> Tensor:
        feed = iter(values)
        return scalar(function)(*[next(feed) if t.is_floating_point() else t for t in given])

    return loss, floats


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


def near(got: Any, expected: Any, what: str) -> None:
    """The two hold the same tensors, as far as bfloat16 goes on the way."""
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a is None or b is None:  # an absent gradient equals one of zeros
            other = b if a is None else a
            assert other is None or not other.any(), f"{what}: result {i}"
        else:
            assert a.dtype == b.dtype, f"{what}: result {i} is {a.dtype}, expected {b.dtype}"
            size = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
            torch.testing.assert_close(a, b, rtol=2**-5, atol=2**-6 * size, equal_nan=True)


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
