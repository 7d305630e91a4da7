"""Wrong arguments raise what they should, through every door, before anything runs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.library import FUNCTIONAL, OPERATORS, opaque_twin


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.spec.rejects], ids=lambda op: op.name)
@pytest.mark.parametrize("door", ["python", "opaque"])
def test_declared_rejects_are_rejected(op: ow.Op[..., Any], door: str) -> None:
    called = op if door == "python" else opaque_twin(op)
    rejects = op.draw_rejects(ow.Maker())
    assert rejects
    for reject in rejects:
        with pytest.raises(reject.error) as raised:
            called(*reject.args, **reject.kwargs)
        assert reject.message in str(raised.value)


@pytest.mark.parametrize("op", FUNCTIONAL, ids=lambda op: op.name)
def test_torch_ops_rejects_what_the_reference_rejects(op: ow.Op[..., Any]) -> None:
    for reject in op.draw_rejects(ow.Maker()):
        if reject.error is ValueError:  # a wrong type is the dispatcher's own affair there
            with pytest.raises(ValueError) as raised:
                op.overload(*reject.args, **reject.kwargs)
            assert reject.message in str(raised.value)


def test_a_number_never_swallows_a_tensor_that_wants_a_gradient() -> None:
    factor = torch.tensor(2.0, requires_grad=True)
    for op in (ow.scale, opaque_twin(ow.scale)):
        with pytest.raises(TypeError, match=r"scale: factor must be a number, got Tensor .*use \.item\(\)"):
            op(torch.ones(3), factor)


def test_wrong_counts_and_names_read_like_pythons_own() -> None:
    x = torch.ones(2)
    with pytest.raises(TypeError, match=r"axpby\(\) missing 1 required positional argument: 'y'"):
        ow.axpby(x)
    with pytest.raises(TypeError, match=r"cube\(\) takes 1 positional argument but 2 were given"):
        ow.cube(x, x)
    with pytest.raises(TypeError, match=r"axpby\(\) got an unexpected keyword argument 'c'"):
        ow.axpby(x, x, c=2)


def test_an_error_of_the_reference_is_its_own() -> None:
    @ow.op
    def fails(x: Tensor) -> Tensor:
        raise KeyError("mine")

    for door in (fails, torch.ops.tests.fails):
        with pytest.raises(KeyError, match="mine"):
            door(torch.ones(1))


def test_require_names_the_operator_from_inside_a_function_it_calls() -> None:
    def check(size: int) -> None:
        ow.require(size > 3, "size must exceed 3, got {size}")

    @ow.op
    def outer(x: Tensor) -> Tensor:
        check(x.shape[0])
        return x * 2

    with pytest.raises(ValueError, match=r"^outer: size must exceed 3, got 2$"):
        outer(torch.ones(2))


def test_require_can_raise_another_error() -> None:
    with pytest.raises(TypeError, match="needs an int"):
        ow.require(False, "needs an int", TypeError)


# After the break that a rejection makes, Dynamo looks into what runs eagerly and says that it cannot.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_a_compiled_call_reports_the_rejection() -> None:
    @ow.op
    def checked(x: Tensor, y: Tensor) -> Tensor:
        ow.require(ow.broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
        return x + y

    with pytest.raises(Exception, match="must broadcast"):
        torch.compile(checked, backend="eager", fullgraph=True)(torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match=r"checked: x and y must broadcast, got \(3,\) and \(4,\)"):
        torch.compile(checked, backend="eager")(torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match=r"axpby: x and y must broadcast, got \(3,\) and \(4,\)"):
        torch.compile(ow.axpby, backend="eager")(torch.ones(3), torch.ones(4))


def test_numpy_numbers_are_numbers() -> None:
    np = pytest.importorskip("numpy", reason="NumPy is optional for opwright")
    x = torch.ones(2)
    assert ow.scale(x, np.float32(2)).tolist() == [2.0, 2.0]
    assert ow.scale(x, np.int64(3)).tolist() == [3.0, 3.0]


def test_a_rejection_inside_a_kernel_is_one_error_and_no_log() -> None:
    """The reference is asked on fake tensors first, which log what they raise with a traceback."""
    told: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    @ow.op
    def summed_along(x: Tensor, dim: int) -> Tensor:
        return x.sum(dim)

    @summed_along.kernel("cpu")
    def _(x: Tensor, dim: int) -> Tensor:
        if dim >= x.dim():
            raise RuntimeError("the kernel takes no such dim")
        return x.sum(dim)

    log, handler = logging.getLogger("torch._subclasses.fake_tensor"), Handler()
    log.addHandler(handler)
    try:
        with pytest.raises(IndexError, match="Dimension out of range"):
            summed_along(torch.ones(2, 3), 7)
        assert ow.explain(summed_along, torch.ones(2, 3), 7).error is not None
        assert not told
        log.error("somebody else's")
        assert told == ["somebody else's"]
    finally:
        log.removeHandler(handler)


@ow.op(opaque=True)
def wide_numbers(x: Tensor, n: int = 2, dims: list[int] | None = None, *, by: ow.Number = 1) -> Tensor:
    return x * n * by


@pytest.mark.parametrize(("name", "value"), [("n", 2**70), ("n", -(2**63) - 1), ("dims", [1, 2**63]), ("by", 2**64)])
def test_a_whole_number_beyond_64_bits_is_refused_by_name(name: str, value: Any) -> None:
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        with pytest.raises(ValueError, match=rf"wide_numbers: {name} must lie in -2\*\*63 … 2\*\*63 - 1, got -?\d+"):
            wide_numbers(x, **{name: value})
    assert wide_numbers(torch.ones(1), 2**63 - 1).item() == 2.0**63


def test_a_misspelled_operator_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"opwright has no 'sigmiod'; did you mean sigmoid\?"):
        _ = ow.sigmiod
    with pytest.raises(AttributeError, match="opwright has no 'xyzzy'; its operators are axpby, "):
        _ = ow.xyzzy
