"""The check: every property of an operator, one small file each, over samples, dtypes, devices and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import torch

    from opwright.kit.check.judge.verdict import Judgement
    from opwright.kit.check.report import Report
    from opwright.kit.op import Op


@overload
def check(
    op: Op[..., Any],
    /,
    *,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    rung: str | None = None,
    sanitize: bool = False,
    coverage: bool = False,
) -> Report: ...


@overload
def check(
    op: Callable[..., Any] | str,
    /,
    *,
    like: Callable[..., Any] | str,
    samples: Any = None,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    dtypes: Sequence[torch.dtype] = (),
    gradients: bool | None = None,
    deterministic: bool = True,
    keep: Sequence[str] = (),
    timeout: float = 60.0,
    memory: float = 4.0,
) -> Judgement: ...


def check(
    op: Any,
    /,
    *,
    like: Callable[..., Any] | str | None = None,
    samples: Any = None,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    rung: str | None = None,
    sanitize: bool = False,
    coverage: bool = False,
    dtypes: Sequence[torch.dtype] = (),
    gradients: bool | None = None,
    deterministic: bool = True,
    keep: Sequence[str] = (),
    timeout: float = 60.0,
    memory: float = 4.0,
) -> Report:
    """Prove an operator and its gradients against its reference; with `like`, any function against another.

    Args:
        op: the operator; the rungs above it that exist or have kernels are checked too. With `like`, any function on
            tensors, or its name as `module:function`; it runs in a process of its own.
        like: the function that says what is right, or its name; or an operator, whose reference and samples are taken.
        samples: with `like`, the calls to begin with: a list of tuples of arguments, a dict of keywords last, or a
            function that draws them, as `@op.samples` has it; or its name.
        device: where to run it.
        seed: what values, sizes and layouts are drawn from.
        thorough: seconds to go on for, with further seeds and slower properties.
        only: names of the properties to check; all of them by default.
        case: the one case to run, as a failure names it.
        rung: the one rung to check, by its name, such as `cube_backward`.
        sanitize: also under AddressSanitizer and UndefinedBehaviorSanitizer; on a GPU under compute-sanitizer.
        coverage: also with inputs that are searched for, to reach lines of the kernel which no case reaches; a thorough
            check does that too.
        dtypes: with `like`, the dtypes to try; those of the samples by default.
        gradients: with `like`, whether the candidate must have gradients; by default they are tried if it has any.
        deterministic: with `like`, whether the same call must give the same bits.
        keep: with `like`, what stays as the samples have it: "sizes", "layouts", "values", "options".
        timeout: with `like`, seconds that a call may take.
        memory: with `like`, GiB that the candidate may take.

    >>> import torch, opwright as ow
    >>> ow.check(ow.cube, only=["forward"]).passed
    True
    >>> def plain(x):
    ...     return x.clamp(min=0)
    >>> report = ow.check(torch.abs, like=plain, samples=[(torch.tensor([[1.0, -2.0]]),)])
    >>> report.verdict.cls, report.verdict.call
    ('wrong values', 'abs(torch.tensor(-2.0))')
    """
    if like is not None:
        if rung is not None or sanitize:
            raise TypeError("check: rung and sanitize are about operators; leave them out beside like")
        from opwright.kit.check.judge.run import judge

        return judge(
            op, like, samples, device=device, seed=seed, thorough=thorough, only=only, case=case, dtypes=dtypes,
            gradients=gradients, deterministic=deterministic, keep=keep, timeout=timeout, memory=memory,
        )  # fmt: skip
    said = {"samples": samples is not None, "dtypes": dtypes, "gradients": gradients is not None, "keep": keep}
    alone = next((word for word, given in said.items() if given), None)
    if alone is not None:
        raise TypeError(f"check: {alone} goes with like=…, the function to hold a candidate against")
    from opwright.kit.check.run import run

    return run(
        [op], device=device, seed=seed, thorough=thorough, only=only, case=case, rung=rung, sanitized=sanitize,
        covered=coverage,
    )  # fmt: skip
