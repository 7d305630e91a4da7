"""What must be rejected is, with the declared error; to any other bad call it answers as its reference does."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.check.calls import first_line, reference_of, results_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.drawn import Draw
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.check.screen import RejectedOnCpu, reads_integers_on_gpu
from opwright.kit.op import Op
from opwright.kit.spec.samples import Reject, Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, copied, rebuilt

PROPERTY = Property(turn=130, process="apart", once=True)

ROUNDS = 24
"""Bad calls made of each sample."""


def cases(subject: Subject) -> Iterator[Case]:
    if not subject.op.is_gradient:
        for i in range(len(_declared(subject))):
            yield Case(0, torch.float32, extra=f"declared{i}")
    rounds = ROUNDS * (4 if subject.thorough else 1) if subject.has_kernel else ROUNDS // 4
    for s in range(min(subject.count, 4)):
        yield from (Case(s, subject.main, extra=f"bad{k}") for k in range(rounds))


def _declared(subject: Subject) -> list[Reject]:
    return subject.op.draw_rejects(Draw(torch.float32, subject.device, subject.seed))


def check(subject: Subject, case: Case) -> None:
    if case.extra.startswith("declared"):
        reject = _declared(subject)[int(case.extra.removeprefix("declared"))]
        bad, ask = Sample(reject.args, reject.kwargs), partial(_rejects, subject, reject)
    else:
        what, bad = call(subject, case)
        ask = partial(_answers_alike, subject, bad, what)
    try:
        ask()
    except Finding as f:
        f.call = bad
        raise


def _rejects(subject: Subject, reject: Reject) -> None:
    wanted = f"{reject.error.__name__} with {reject.message!r}"
    try:
        subject.op(*reject.args, **reject.kwargs)
    except Exception as e:
        if not isinstance(e, reject.error):
            raise Finding(f"it raised {type(e).__name__} where {wanted} is declared: {first_line(e)}") from None
        if reject.message not in str(e):
            raise Finding(f"its message differs from the declared {wanted}: {first_line(e)}") from None
        return
    raise Finding(f"it accepts what it must reject: {wanted} is declared")


def call(subject: Subject, case: Case) -> tuple[str, Sample]:
    """A call with one argument made bad at random, and what is bad about it."""
    op, rng = subject.op, subject.rng(case.id)
    plain = subject.draw(Case(case.sample, case.dtype))
    values = op.signature.bind(plain.args, plain.kwargs)
    name = rng.choice([n for n, v in values.items() if v is not None] or [*values])
    how, values[name] = _worse(values[name], rng)
    sample = Sample(
        tuple(values[p.name] for p in op.signature.parameters if not p.keyword_only and p.name in values),
        {p.name: values[p.name] for p in op.signature.parameters if p.keyword_only and p.name in values},
    )
    return f"{name} {how}", sample


def _answers_alike(subject: Subject, sample: Sample, what: str) -> None:
    """Both reject a bad call, or both give the same."""
    op = subject.op
    if _endless(sample) and not _raises_early(subject, sample):
        raise NotApplicable("it would not end")
    if op.is_gradient:
        # Autograd hands a rung what belongs together; of anything else it is only asked to survive.
        _survives(op, sample)
        return
    try:
        oracle = Oracle(reference_of(op), sample, subject.seed)
    except RejectedOnCpu:
        _survives(op, sample)  # to raise for an index, a GPU would have to wait for the call before
        return
    except Exception as e:
        try:
            results_of(op, op, copied(sample))
        except Exception:
            return
        raise Finding(f"it accepts {what}, which the reference rejects: {type(e).__name__}: {first_line(e)}") from None
    try:
        got = results_of(op, op, copied(sample))
    except Exception as e:
        if what.endswith(BEYOND):
            return  # as every operator does: a schema's integers have 64 bits, and Python's any number
        if what.endswith(MANY):
            return  # as most of PyTorch's own operators do beyond 64
        if what.endswith(AMONG):
            return  # offsets that decrease, say: of what makes no sense nobody has to make anything
        raise Finding(f"it rejects {what}, which the reference takes: {type(e).__name__}: {first_line(e)}") from None
    # PyTorch itself gives garbage for some tensors on the meta device among others.
    comparable = not what.endswith(("on the meta device", "sparse", MANY)) and not op.random
    if comparable and all(r is None or r.layout == torch.strided for r in got):
        try:
            oracle.judge(got)
        except Finding as f:
            raise Finding(f"with {what}, {f.message}", index=f.index, expected=f.expected, got=f.got) from None


def _survives(op: Op[..., Any], sample: Sample) -> None:
    if reads_integers_on_gpu(sample) and not _has_kernel_for(op, sample):
        raise NotApplicable("the reference runs, and on a GPU a bad index ends more than the call")
    with contextlib.suppress(Exception):
        results_of(op, op, copied(sample))


def _has_kernel_for(op: Op[..., Any], sample: Sample) -> bool:
    try:
        return op.choose(op.signature.bind(sample.args, sample.kwargs))[0] is not None
    except Exception:
        return False  # it is no call at all


BEYOND, AMONG, MANY = "huge", "among its elements", "with 70 dimensions"


def _worse(value: Any, rng: random.Random) -> tuple[str, Any]:
    """A bad value in place of a good one, and what is bad about it."""
    if isinstance(value, Tensor):
        whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        if whole and value.numel() and rng.random() < 0.5:
            return _beyond(value, rng)
        how = rng.choice([*TENSORS])
        return how, TENSORS[how](value, rng)
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return rng.choice([("emptied", []), ("shortened", value[:-1]), ("with a None in it", [*value, None])])
    if isinstance(value, list):
        return rng.choice([("emptied", []), ("too long", [*value, *value])])
    large = BEYOND if isinstance(value, int) else "large"
    return rng.choice(
        [("as text", "nonsense"), ("absent", None), (large, 2**70), ("as NaN", float("nan")), ("negative", -(2**40))]
    )


def _beyond(t: Tensor, rng: random.Random) -> tuple[str, Tensor]:
    """Integers with one among them that no index of this call is likely to reach, and some that nearly are."""
    least, most = int(t.min()), int(t.max())
    far = 2 ** (8 * t.element_size() - 2)
    number = rng.choice([most + 1, most + 2, 2 * most + 3, -1, least - 1, -most - 2, far, -far])
    out = t.clone().flatten()
    number = min(max(number, torch.iinfo(t.dtype).min), torch.iinfo(t.dtype).max)
    out[rng.randrange(out.numel())] = number
    return f"with {number} among its elements", out.reshape(t.shape)


def _other_size(t: Tensor, rng: random.Random) -> Tensor:
    if t.dim() == 0:
        return t.expand(3).clone()
    d = rng.randrange(t.dim())
    size = rng.choice([0, 1, t.shape[d] + 1, t.shape[d] + 17])
    shape = [*t.shape]
    shape[d] = size
    return torch.ones(shape, dtype=t.dtype, device=t.device)


TENSORS: dict[str, Callable[[Tensor, random.Random], Any]] = {
    "with a dimension more": lambda t, rng: t.unsqueeze(rng.randrange(t.dim() + 1)),
    "with a dimension less": lambda t, rng: t.flatten() if t.dim() > 1 else t.reshape(-1)[:1].sum(),
    "of another size": _other_size,
    "of other sizes": lambda t, rng: _other_size(_other_size(t, rng), rng),
    "of another dtype": lambda t, rng: t.to(
        rng.choice([torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8])
    ),
    "on the meta device": lambda t, rng: t.to("meta"),
    "sparse": lambda t, rng: t.detach().to_sparse() if t.dim() else t,
    "absent": lambda t, rng: None,
    "a number": lambda t, rng: 3.5,
    "a list": lambda t, rng: [t, t],
    "without elements": lambda t, rng: torch.empty(0, dtype=t.dtype, device=t.device),
    "of 2^60 elements": lambda t, rng: torch.ones((), dtype=t.dtype, device=t.device).expand(2**60),
    MANY: lambda t, rng: torch.ones([1] * 70, dtype=t.dtype, device=t.device),
}


def _endless(sample: Sample) -> bool:
    sizes: list[int] = []
    rebuilt(sample, lambda t: sizes.append(t.numel()) or t)  # type: ignore[func-returns-value]
    return any(n >= 2**40 for n in sizes)


HUGE = 2**50


class _FirstTouch(private.TorchDispatchMode):
    """Notices whether the first to read a huge tensor makes another one, which fails before it reads anything."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fails: bool | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        given = [t for value in (*args, *(kwargs or {}).values()) for t in tensors(value)]
        if self.fails is None and not is_view and any(t.numel() >= HUGE for t in given):
            self.fails = any(t.numel() >= HUGE and not any(t is g for g in given) for t in tensors(out))
        return out


def _raises_early(subject: Subject, sample: Sample) -> bool:
    """Whether a call on so many elements fails at once, since it wants memory that nobody has."""
    mode, touch = private.fake_tensor_mode(), _FirstTouch()
    try:
        with mode, touch, torch.no_grad():
            faked = rebuilt(sample, mode.from_tensor)
            out = subject.op.reference(*faked.args, **faked.kwargs)
    except Exception:
        return False
    sizes: list[int] = []
    rebuilt(Sample((out,)), lambda t: sizes.append(t.numel()) or t)  # type: ignore[func-returns-value]
    return touch.fails is True and bool(sizes) and all(n >= HUGE for n in sizes)
