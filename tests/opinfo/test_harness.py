"""The harness finds what is wrong: operators broken on purpose, each in a way that one check must see."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.calling import Function
from tests.opinfo import running
from tests.opinfo.checks import CHECKS, Subject
from tests.opinfo.examine import Result, Settings, examine, mend
from tests.opinfo.wrapping import Call, Mends, NotExpressible


def plain(x: Tensor) -> tuple[Tensor, ...]:
    return (x * x * x,)


class _OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return grads[0] * 3 * (x * x).detach()


BROKEN: dict[str, Function] = {
    "values": lambda x: ((x * x * x).t().contiguous().t(),),
    "flags": lambda x: ((x * x * x).detach(),),
    "gradients": lambda x: (x.detach() * x * x,),
    "second": lambda x: (_OnceDifferentiable.apply(x),),  # type: ignore[no-untyped-call]
    "inplace": lambda x: (torch.stack([x * x * x]).unbind()[0],),
    "vmap": lambda x: (x * x * x + torch._C._functorch.is_batchedtensor(x),),  # type: ignore[attr-defined]
    "autocast": lambda x: (x * x * x.float(),),
    "compile": lambda x: (x * x * x + torch.compiler.is_compiling(),),
    "dynamic": lambda x: (x * x * x + torch.compiler.is_compiling(),),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes_what_is_right_and_finds_what_is_wrong(name: str) -> None:
    dtype = torch.bfloat16 if name == "autocast" else torch.float64
    x = torch.rand(3, 4, dtype=dtype, requires_grad=True)
    CHECKS[name](Subject(plain, plain, [x]))
    with pytest.raises(AssertionError):
        CHECKS[name](Subject(BROKEN[name], plain, [x]))


def test_zeros_are_right_for_a_step_and_wrong_for_what_has_no_derivative() -> None:
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def zeros(function: Function) -> Function:
        """The function's values, with gradients of zeros."""
        return lambda t: (function(t)[0] + 0 * t,)

    def step(t: Tensor) -> tuple[Tensor]:
        return ((t > 0).double(),)

    def detached(t: Tensor) -> tuple[Tensor]:
        return (t.detach().exp(),)

    CHECKS["gradients"](Subject(zeros(step), step, [x]))
    with pytest.raises(AssertionError, match="the plain function raises"):
        CHECKS["gradients"](Subject(zeros(detached), detached, [x]))


@pytest.mark.parametrize("form", ["transparent", "opaque"])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x * 2, Mends()),
        (lambda x: x.view(-1), Mends(clone=True)),
        (lambda x: x.mul_(2).sum(), Mends(mutates=("x_0",))),
        (lambda x: torch.rand_like(x), Mends(random=True)),
    ],
)
def test_the_message_of_a_refusal_is_followed(form: str, function: Callable[..., Any], expected: Mends) -> None:
    call = Call.of("mended", function, (torch.rand(3),), {})
    assert mend(call, form) == (expected, [])


def test_a_call_becomes_a_function_with_a_schema() -> None:
    def function(xs: list[Tensor], dim: int, *, flag: bool, where: slice) -> tuple[Tensor, Tensor]:
        return torch.cat(xs, dim)[where], xs[0] + flag

    call = Call.of("joined", function, ([torch.ones(2), torch.ones(3)], 0), {"flag": True, "where": slice(1, 3)})
    source = "def joined(xs_0: list[Tensor], n_1: int, flag_2: bool) -> tuple[Tensor, Tensor]:"
    assert call.source().startswith(source)
    assert [t.tolist() for t in call.over(call.reference())(torch.zeros(1), torch.ones(2))] == [[1.0, 1.0], [1.0]]
    with pytest.raises(NotExpressible, match="returns bool"):
        Call.of("equal", torch.equal, (torch.ones(1), torch.ones(1)), {})


class _Info:
    """As much of an OpInfo as the harness asks for."""

    supports_autograd = True

    def __init__(self, op: Callable[..., Any]) -> None:
        self.op = op

    def supported_dtypes(self, device: object) -> set[torch.dtype]:
        return {torch.float32, torch.float64}

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool) -> list[Any]:
        class Sample:
            input = torch.rand(3, dtype=dtype, device=device, requires_grad=requires_grad)
            args, kwargs = (), {"alpha": 2}

        return [Sample, Sample]


def test_an_operator_is_examined_in_all_ways_and_says_where_it_is() -> None:
    heard: list[str] = []
    result = examine("scaled", _Info(lambda x, alpha: x * alpha), Settings(), heard.append)
    assert result.findings == []
    for form in Settings().forms:
        for check in CHECKS if form == "opaque" else CHECKS.keys() - {"dynamic"}:
            assert any(line.startswith(f"{form} {check}, ") for line in heard), (form, check)


class _Mortal:
    """A worker that dies of one operator."""

    names = ("good", "mortal", "next")
    left = 100

    def examine(self, name: str, settings: Settings) -> Result:
        if name == "mortal":
            raise running.Died("crashes with SIGSEGV in opaque values, float64 sample 0")
        return Result(name, checks=1)

    def end(self) -> None:
        pass


def test_a_crash_is_a_finding_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Worker", _Mortal)
    report = running.run(Settings(), jobs=2)
    assert [r.name for r in report.results] == ["good", "mortal", "next"]
    text = "the process crashes with SIGSEGV in opaque values, float64 sample 0"
    assert report.complaints() == [f"mortal, opaque alive: {text}"]
    monkeypatch.setattr(running, "EXCEPTIONS", {("mortal", "alive", "opaque"): "known"})
    assert report.complaints() == []


@pytest.mark.slow
def test_a_worker_that_crashes_or_hangs_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for ended, says in ((signal.SIGSEGV, "crashes with SIGSEGV in"), (signal.SIGSTOP, "hangs for 1 s in")):
        worker = running.Worker()
        assert len(worker.names) > 600
        worker.process.send_signal(ended)
        with monkeypatch.context() as patch:
            patch.setattr(running, "TIMEOUT", 1.0)
            with pytest.raises(running.Died, match=says):
                worker.examine("add", Settings())
        assert worker.process.returncode is not None


def test_an_exception_that_is_not_needed_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "EXCEPTIONS", {("good", "values", "opaque"): "it was wrong once"})
    report = running.Report(Settings(), [Result("good", checks=1)])
    assert [c for c in report.complaints() if "no longer needed" in c]
    assert running.Report(Settings(samples=1), [Result("good", checks=1)]).complaints() == []
