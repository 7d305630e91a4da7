"""The ways in which an operator is used, each compared with the plain function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opwright.kit.spec.values import has_gradient
from tests.calling import Function, scalar, strides

Use = Callable[[Function], Sequence[Tensor | None]]
Check = Callable[["Subject"], None]
CHECKS: dict[str, Check] = {}
FRESH = ("values", "gradients", "autocast")
"""Checks whose first call must be an operator's very first: it runs in another way than those after it."""
COMPILED = ("compile", "dynamic")


@dataclass
class Subject:
    """An operator and the plain function, both as functions of tensors alone, and tensors to call them with."""

    operator: Function
    plain: Function
    given: list[Tensor]
    garbage: bool = False
    """Whether the values are whatever memory held."""
    random: bool = False

    @property
    def device(self) -> str:
        return self.given[0].device.type if self.given else "cpu"

    def copies(self, *, grad: bool = True) -> list[Tensor]:
        """The given tensors with their strides, in memory of their own."""
        return [duplicate(t).requires_grad_(grad and t.requires_grad) for t in self.given]


def duplicate(t: Tensor) -> Tensor:
    """The same tensor, strides and all, in memory of its own; what is sparse cannot be copied deeply."""
    return copy.deepcopy(t.detach()) if t.layout == torch.strided else t.detach().clone()


def check(name: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


# --- both at once ----------------------------------------------------------------------------------------------


def hold(subject: Subject, use: Use, what: str, *, lenient: bool = False, layout: bool = False) -> None:
    """The operator gives in this use what the plain function gives, or raises what it raises; a `lenient` use may
    succeed where the plain function fails."""
    expected, failed = attempt(use, subject.plain)
    got, raised = attempt(use, subject.operator)
    if failed is not None:
        if raised is None and not lenient and not _absent(subject, got, failed):
            raise AssertionError(f"{what}: the plain function raises {shown(failed)}, the operator does not")
        if raised is not None and not lenient and not isinstance(raised, type(failed)):
            raise AssertionError(f"{what}: the plain function raises {shown(failed)}, the operator {shown(raised)}")
        return
    if raised is not None:
        raise AssertionError(f"{what}: the operator raises {shown(raised)}") from raised
    compare(got, expected, what, layout=layout, values=not subject.garbage)


def _absent(subject: Subject, got: Sequence[Tensor | None], failed: Exception) -> bool:
    """Whether the plain function has no gradients because it stands still, and the operator's are zeros."""
    gradients = got[: sum(t.requires_grad for t in subject.given)]
    zeros = all(g is None or not g.any() for g in gradients)
    return "does not require grad" in str(failed) and zeros and still(subject)


def attempt(use: Use, function: Function) -> tuple[list[Tensor | None], Exception | None]:
    torch.manual_seed(0)
    try:
        return list(use(function)), None
    except Exception as error:
        return [], error


def shown(error: BaseException) -> str:
    """An exception on one line; of a compiler's, what it stumbled over."""
    while type(error).__name__ == "BackendCompilerFailed" and error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    for before in ("): got ", "Developer debug context: "):  # Dynamo shows the call and gives advice first
        if before in text:
            text = text.partition(before)[2]
            break
    return f"{type(error).__name__}: {text[:300]}"


def compare(
    got: Sequence[Tensor | None], expected: Sequence[Tensor | None], what: str, *, layout: bool, values: bool = True
) -> None:
    """Both hold the same tensors; an absent gradient equals one of zeros."""
    assert len(got) == len(expected), f"{what}: {len(got)} tensors, expected {len(expected)}"
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        where = f"{what}: tensor {i}"
        if g is None or e is None:
            other = e if g is None else g
            assert other is None or not other.any(), f"{where} is {_brief(g)}, expected {_brief(e)}"
            continue
        assert (g.dtype, g.shape, g.device) == (e.dtype, e.shape, e.device), f"{where} is {_brief(g)}, not {_brief(e)}"
        assert g.layout == e.layout, f"{where} has layout {g.layout}, expected {e.layout}"
        if layout and e.layout == torch.strided:
            assert strides(g) == strides(e), f"{where} has strides {g.stride()}, expected {e.stride()}"
            assert g.is_contiguous() == e.is_contiguous(), f"{where} is contiguous where the other is not"
        if values:
            try:
                torch.testing.assert_close(g, e, equal_nan=True)
            except AssertionError as differs:
                raise AssertionError(f"{where}: {' '.join(str(differs).split())[:300]}") from None


def _brief(t: Tensor | None) -> str:
    return "none" if t is None else f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} on {t.device.type}"


def gradients(subject: Subject, order: int = 1, change: Callable[[list[Tensor]], None] | None = None) -> Use:
    """The use that differentiates a loss, after a change to the results. It gives the gradients, then the results and
    the arguments as they are left."""

    def use(function: Function) -> list[Tensor | None]:
        inputs = subject.copies()
        watched = [t for t in inputs if t.requires_grad]
        out = function(*inputs)
        if change is not None:
            change([o for o in out if has_gradient(o)])
        loss = scalar(lambda: out)()
        found: Sequence[Tensor | None] = [None] * len(watched)
        if watched:  # where nothing depends on them, this raises
            found = torch.autograd.grad(loss, watched, create_graph=order > 1, allow_unused=True)
        for _ in range(order - 1):
            live = [g for g in found if g is not None and g.requires_grad]
            found = [None] * len(watched)
            if live:
                parts = [torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in live]
                total = torch.stack([p.square().sum().double() for p in parts]).sum()
                found = torch.autograd.grad(total, watched, create_graph=True, allow_unused=True)
        return [*found, *[t.detach() for t in (*out, *inputs)]]

    return use


def still(subject: Subject) -> bool:
    """Whether the plain function gives the same for inputs a little to the side: its gradients are zeros then, and
    that it records nothing is as good. A function that PyTorch has no derivative of moves."""
    torch.manual_seed(0)
    shifts = [1e-3 * torch.rand_like(t) if t.requires_grad else None for t in subject.given]

    def values(direction: int) -> list[Tensor]:
        torch.manual_seed(0)
        with torch.no_grad():
            moved = zip(subject.copies(grad=False), shifts, strict=True)
            return list(subject.plain(*(t if shift is None else t + direction * shift for t, shift in moved)))

    here = values(0)
    return all(torch.equal(a, b) for side in (-1, 1) for a, b in zip(here, values(side), strict=True))


# --- the ways --------------------------------------------------------------------------------------------------


@check("values")
def _(subject: Subject) -> None:
    def use(function: Function) -> list[Tensor]:
        given = subject.copies(grad=False)
        return [*function(*given), *given]

    hold(subject, use, "first call", layout=True)
    hold(subject, use, "second call", layout=True)


@check("flags")
def _(subject: Subject) -> None:
    """What requires a gradient does so with us. The reverse need not hold: that a result depends on nothing shows in
    the backward."""
    recorded = [t.requires_grad for t in attempt(lambda f: f(*subject.copies()), subject.plain)[0] if t is not None]

    def use(function: Function) -> list[Tensor]:
        out = function(*subject.copies())
        return [torch.tensor(t.requires_grad or not needed) for t, needed in zip(out, recorded, strict=True)]

    hold(subject, use, "requires_grad", lenient=True)


@check("gradients")
def _(subject: Subject) -> None:
    if not subject.garbage:
        hold(subject, gradients(subject), "first gradients")
        hold(subject, gradients(subject), "next gradients")


@check("second")
def _(subject: Subject) -> None:
    if not subject.garbage and any(t.requires_grad for t in subject.given):
        hold(subject, gradients(subject, 2), "second derivatives")


@check("inplace")
def _(subject: Subject) -> None:
    if subject.garbage or not any(t.requires_grad for t in subject.given):
        return

    def recorded(out: list[Tensor]) -> None:
        for t in out:
            t.mul_(2)

    def unrecorded(out: list[Tensor]) -> None:
        with torch.no_grad():
            for t in out:
                t.add_(1)

    def detached(out: list[Tensor]) -> None:
        for t in out:
            t.detach().add_(1)

    # PyTorch's own operators often keep a result for their gradient, and then refuse what we allow.
    found = []
    for change in (recorded, unrecorded, detached):
        try:
            hold(subject, gradients(subject, change=change), f"in-place change, {change.__name__}", lenient=True)
        except AssertionError as differs:
            found.append(str(differs))
    assert not found, "; ".join(found)


@check("vmap")
def _(subject: Subject) -> None:
    if not subject.given or subject.garbage:
        return
    randomness = "different" if subject.random else "error"

    def every(function: Function) -> Sequence[Tensor]:
        batch = [torch.stack([t, t.roll(1), t]) for t in subject.copies(grad=False)]
        out: Sequence[Tensor] = torch.func.vmap(function, randomness=randomness)(*batch)
        return out

    def first(function: Function) -> Sequence[Tensor]:
        one, *rest = subject.copies(grad=False)
        dims = (0, *[None] * len(rest))
        out: Sequence[Tensor] = torch.func.vmap(function, dims, randomness=randomness)(torch.stack([one, one]), *rest)
        return out

    hold(subject, every, "vmap", lenient=True)
    hold(subject, first, "vmap of the first", lenient=True)


@check("autocast")
def _(subject: Subject) -> None:
    def use(function: Function) -> list[Tensor | None]:
        with torch.autocast(subject.device, dtype=torch.bfloat16):
            out = function(*subject.copies(grad=False))
        return [*out]

    def differentiated(function: Function) -> Sequence[Tensor | None]:
        def cast(*given: Tensor) -> tuple[Tensor, ...]:
            with torch.autocast(subject.device, dtype=torch.bfloat16):
                return function(*given)

        return gradients(subject)(cast)

    hold(subject, use, "first call under autocast")
    hold(subject, use, "second call under autocast")
    if not subject.garbage:
        hold(subject, differentiated, "gradients under autocast")


def _compiled(name: str, dynamic: bool | None) -> None:
    @check(name)
    def _(subject: Subject) -> None:
        """Forward and backward. Compared with the plain function uncompiled; what that one cannot have compiled
        either is PyTorch's affair."""

        def use(function: Function) -> Sequence[Tensor | None]:
            if subject.garbage:
                return function(*subject.copies(grad=False))
            return gradients(subject)(function)

        def through(function: Function) -> Function:
            torch._dynamo.reset()
            made: Function = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
            return made

        twin = Subject(through(subject.operator), subject.plain, subject.given, subject.garbage, subject.random)
        try:
            hold(twin, use, "compiled", lenient=True)
        except AssertionError:
            twin.operator = through(subject.plain)
            try:
                hold(twin, use, "compiled", lenient=True)
            except AssertionError:
                return
            raise


_compiled("compile", None)
_compiled("dynamic", True)
