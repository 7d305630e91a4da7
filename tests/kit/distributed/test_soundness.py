"""What a rule leaves open never gives wrong numbers, and never stops one rank alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

import opwright as ow
from tests.kit.distributed.threads import R, S, expect_right, on_ranks, spread, whole, with_kernel

# --- decided from the call alone -------------------------------------------------------------------------------------


def test_what_a_rank_called_before_decides_nothing() -> None:
    def act(x: Tensor, whole: bool = False) -> Tensor:
        return x / x.shape[0] if whole else torch.tanh(x)

    op, x = with_kernel("decided_by_history", act), torch.randn(6, 4)

    def call(rank: int, mesh: Any) -> Any:
        own = [DeviceMesh("cpu", [r]) for r in range(2)]
        if rank == 0:
            op(distribute_tensor(x, own[0], [R]))
        with CommDebugMode() as mode:  # type: ignore[no-untyped-call]
            out = op(spread(x, mesh, S(0)), whole=True)
        torch.testing.assert_close(whole(out), x / 6)
        return out.placements, mode.get_total_counts()

    first, second = on_ranks(call)
    assert first == second == ((S(0),), 0)


# --- numbers and branches that come from sizes -----------------------------------------------------------------------


def by_count(x: Tensor) -> Tensor:
    return x / x.new_tensor(float(x.shape[0]))


def by_root(x: Tensor) -> Tensor:
    return x.softmax(1) * torch.rsqrt(torch.tensor(float(x.shape[0])))


def by_scalar(x: Tensor) -> Tensor:
    return x * torch.full((), x.shape[0], dtype=x.dtype)


def by_parity(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] % 2 else x * 3


def by_threshold(x: Tensor) -> Tensor:
    return x / 2 if x.shape[0] > 4 else x * 3


def by_square(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] == x.shape[1] else x * 3


def by_choice(x: Tensor) -> Tensor:
    twice, thrice = x * 2, x * 3
    return twice if x.shape[0] > 4 else thrice


def by_chosen_softmax(x: Tensor) -> Tensor:
    one, other = x.softmax(1), x.log_softmax(1)
    return one if x.shape[0] > 4 else other


def one_row(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] == 1 else x * 3


def no_row(x: Tensor) -> Tensor:
    return x * 2 if x.numel() == 0 else x * 3


def two_rows(x: Tensor) -> Tensor:
    ow.require(x.shape[0] >= 2, "x must have two rows, got {x.shape}")
    return torch.tanh(x)


SIZED = [
    (by_count, (6, 4)), (by_root, (6, 4)), (by_scalar, (6, 4)), (by_parity, (5, 4)), (by_threshold, (9, 4)),
    (by_square, (4, 4)), (by_choice, (9, 4)), (by_chosen_softmax, (9, 4)), (one_row, (2, 4)), (no_row, (1, 4)),
    (two_rows, (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "shape"), SIZED, ids=lambda v: getattr(v, "__name__", None))
def test_a_reference_that_asks_for_sizes_gets_those_of_the_whole(function: Any, shape: tuple[int, ...]) -> None:
    op = with_kernel(f"sized_{function.__name__}", function)
    assert set(expect_right(op, [torch.randn(shape)], [S(0)])) <= {"reference", "replicates"}


def test_sizes_that_do_not_matter_leave_each_element_to_itself() -> None:
    """One that looks at sizes and would do the same for all that pieces have."""
    op = with_kernel("sized_two_rows_enough", two_rows)
    assert expect_right(op, [torch.randn(4, 3)], [S(0)]) == ["derived"] * 2
    assert expect_right(op, [torch.randn(3, 4)], [S(1)]) == ["carried"] * 2  # along rows it must not be cut


# --- declarations ----------------------------------------------------------------------------------------------------


def test_once_holds_where_only_some_results_are_sums() -> None:
    def rows_and_total(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.sum(0) + start

    op = with_kernel("rows_and_total", rows_and_total)
    op.shard("x[r, k] start[k] -> [r, k] [k]", sums="r", once="start")
    assert expect_right(op, [torch.randn(6, 4), torch.randn(4)], [S(0), R]) == ["declared"] * 2


def products(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1)


def stretched(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * y.cumsum(-1)


@pytest.mark.parametrize("where", [None, 0, 1])
def test_a_rule_is_not_for_sizes_that_its_patterns_do_not_fit(where: int | None) -> None:
    op = with_kernel(f"products_{where}", products)
    op.shard("x[b, k] y[b, k] -> [b]", sums="k")
    expect_right(op, [torch.randn(4, 2), torch.randn(4, 1)], [S(1), R if where is None else S(where)])


@pytest.mark.parametrize("rows", [2, 4])
def test_a_tensor_that_broadcasts_where_a_rule_cuts_stops_no_rank(rows: int) -> None:
    op = with_kernel(f"stretched_{rows}", stretched)
    op.shard("x[b, k] y[b, k] -> [b, k]", over="b")
    expect_right(op, [torch.randn(rows, 3), torch.randn(1, 3)], [S(0), S(0)])


def test_a_call_that_fits_no_pattern_is_served_as_if_nothing_were_declared() -> None:
    def shifted(x: Tensor, shift: Tensor) -> Tensor:
        return x.softmax(-1) + shift

    op = with_kernel("shifted_by_a_number", shifted)
    op.shard("x[..., k] shift[..., k] -> [..., k]", over="...")
    assert expect_right(op, [torch.randn(6, 4), torch.randn(())], [S(0), R]) == ["carried"] * 2


def test_what_is_whole_along_a_dimension_of_the_mesh_stays_so() -> None:
    def call(rank: int, mesh: Any) -> Any:
        x, weight = spread(torch.randn(8, 4), mesh, S(0), R), spread(torch.randn(6, 4), mesh, R, R)
        return ow.linear(x, weight).placements

    assert on_ranks(call, 2, 2) == [(S(0), R)] * 4


def test_pieces_that_an_operator_refuses_are_not_made() -> None:
    op = with_kernel("refuses_pieces", two_rows)
    op.shard("x[b, k] -> [b, k]", over="b")  # which the check would not let pass
    expect_right(op, [torch.randn(3, 4)], [S(0)])


# --- what PyTorch gets wrong -----------------------------------------------------------------------------------------


def flat(x: Tensor) -> Tensor:
    return x.reshape(-1).clone()


def spread_out(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 0)


def log_sum(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 0, keepdim=True)


def largest(x: Tensor) -> Tensor:
    return x.amax(0)


def with_positions(x: Tensor) -> Tensor:
    return x.softmax(0) + torch.arange(x.shape[0], dtype=x.dtype)[:, None]


def running(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1)  # whose rule takes -1 for none of the dimensions


@pytest.mark.parametrize(
    ("function", "shape", "cut"),
    [
        (running, (5, 4), 1),
        (flat, (5, 4), 0),
        (spread_out, (5, 4), 0),
        (log_sum, (5, 4), 1),
        (largest, (1, 4), 0),
        (with_positions, (5, 4), 0),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_where_pytorchs_rules_are_wrong_every_device_gets_the_whole(function: Any, shape: Any, cut: int) -> None:
    op = with_kernel(f"whole_{function.__name__}", function)
    assert expect_right(op, [torch.randn(shape)], [S(cut)]) == ["replicates"] * 2


def test_a_dimension_that_is_not_cut_may_be_counted_from_the_end() -> None:
    op = with_kernel("from_the_end", running)
    assert expect_right(op, [torch.randn(6, 4)], [S(0)]) == ["carried"] * 2


@pytest.mark.parametrize("where", [None, 0, 1])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_convolution_is_right_however_it_is_cut(where: int | None, cut: int) -> None:
    def convolved(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.conv1d(x, weight, padding=1)

    op = with_kernel(f"convolved_{cut}_{where}", convolved)
    expect_right(op, [torch.randn(5, 3, 6), torch.randn(4, 3, 3)], [S(cut), R if where is None else S(where)])


# --- to every order ---------------------------------------------------------------------------------------------------


def test_a_second_derivative_runs_by_the_rule_of_the_gradients_gradient() -> None:
    def shares(x: Tensor, *, gain: Tensor | None = None) -> Tensor:
        y = x / (x.abs().sum(1, keepdim=True) + 1e-3)
        return y if gain is None else y * gain

    op = with_kernel("shares_of_rows", shares)
    op.shard("x[b, k] gain[k] -> [b, k]", over="b")
    x = torch.randn(6, 4, requires_grad=True)

    def twice(x: Any) -> list[Any]:
        (first,) = torch.autograd.grad((op(x) ** 2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), x)
        return [first, second]

    want = twice(x)

    def call(rank: int, mesh: Any) -> list[str]:
        cut = spread(x, mesh, S(0))
        with _Seen() as seen:
            got = twice(cut)
        torch.testing.assert_close([whole(t) for t in got], [t.detach() for t in want])
        return [name for name in seen.names if "shares" in name or "abs" in name]

    names = ["shares_of_rows", "shares_of_rows_backward", "shares_of_rows_backward_backward", "shares_of_rows_backward"]
    for seen in on_ranks(call):
        assert [name.split(".")[1] for name in seen] == names


class _Seen(TorchDispatchMode):
    """The operators that DTensors are given to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_tensors_on_several_meshes_are_told_apart() -> None:
    def listed(x: Tensor, more: list[Tensor]) -> Tensor:
        return x.softmax(1) + sum(more)

    def named(x: Tensor, *, y: Tensor) -> Tensor:
        return x.softmax(1) + y

    lists, keywords, x = with_kernel("meshes_listed", listed), with_kernel("meshes_named", named), torch.randn(4, 4)

    def call(rank: int, mesh: Any) -> Any:
        here, other = spread(x, mesh, S(0)), distribute_tensor(x, DeviceMesh("cpu", [1, 0]), [S(0)])
        calls: list[Any] = [
            lambda: ow.linear(here, other),
            lambda: ow.axpby(here, other),
            lambda: lists(here, [other]),
            lambda: keywords(here, y=other),
        ]
        for each in calls:
            with pytest.raises((ValueError, RuntimeError)) as raised:
                each()
            assert "is on DeviceMesh([1, 0], 'cpu'), and x on DeviceMesh([0, 1], 'cpu', ('data',))" in str(raised.value)
        with pytest.raises(TypeError, match="meshes_named: x is a plain tensor, and y a DTensor"):
            keywords(x, y=here)
        with pytest.raises(TypeError, match=r"meshes_listed: more\[0\] is a plain tensor, and x a DTensor"):
            lists(here, [x])

    on_ranks(call)
