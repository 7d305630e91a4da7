"""What is made so large, and how it is compared. It runs on a GPU, in tests/cuda."""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.build import lockfile
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties import large
from opwright.kit.check.report import Finding, NotApplicable


def test_a_sample_is_stretched_along_a_size_that_the_operator_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(self: large._Shapes, *shape: int, dtype: torch.dtype, low: float = 0, high: float = 0) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    monkeypatch.setattr(large._Shapes, "fresh", without_memory)
    # Its hidden units and inputs stand in several shapes: of its sizes only the batch can grow by itself.
    sample = large._stretched(Subject(ow.lltm_cell, "cpu", 0), Case(0, torch.bfloat16, extra="contiguous"))
    x, weight, _, h, c = sample.args
    assert x.numel() > 2**31
    assert len({x.shape[0], h.shape[0], c.shape[0]}) == 1
    assert weight.numel() < 100
    assert ow.lltm_cell.reference(*sample.args).h.shape == h.shape


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.bool, torch.uint8]
)
def test_values_are_drawn_within_their_bounds_and_again(dtype: torch.dtype) -> None:
    def drawn() -> Tensor:
        make = large._Shapes(torch.bfloat16, "cpu", 7)
        make.made = True
        return make(1000, dtype=dtype, low=1, high=3)

    made = drawn()
    assert made.dtype == dtype
    parts = torch.view_as_real(made) if dtype.is_complex else made
    assert len(parts.unique()) > 1
    assert dtype == torch.bool or bool(((parts >= 1) & (parts <= 3)).all())
    assert torch.equal(made, drawn())


def test_rounding_passes_and_elements_out_of_place_do_not() -> None:
    right = torch.empty(2**20, dtype=torch.bfloat16).uniform_(-2, 2, generator=torch.Generator().manual_seed(0))
    outlier = right.clone()
    outlier[12345] += 20 * torch.finfo(torch.bfloat16).eps
    large._compare(outlier, right, 0)
    moved = torch.cat([right[:-9], right[:9]])
    with pytest.raises(Finding, match=f"^result 0 of {2**20} elements is wrong from element") as raised:
        large._compare(moved, right, 0)
    assert raised.value.index[0] >= 2**20 - 9
    unwritten = right.clone()
    unwritten[-1] = float("nan")
    with pytest.raises(Finding, match=f"from element {2**20 - 1} on"):
        large._compare(unwritten, right, 0)


def test_sums_that_cancel_are_compared_with_the_largest() -> None:
    sums = torch.tensor([30000.0, -4800.0, float("inf"), float("nan")], dtype=torch.bfloat16)
    large._compare(torch.tensor([30000.0, -4096.0, float("inf"), float("nan")], dtype=torch.bfloat16), sums, 0)
    with pytest.raises(Finding, match="from element 1 on"):
        large._compare(torch.tensor([30000.0, 30000.0, float("inf"), float("nan")], dtype=torch.bfloat16), sums, 0)


def test_whole_numbers_are_compared_exactly() -> None:
    right = torch.tensor([2**60, 3])
    large._compare(right.clone(), right, 0)
    with pytest.raises(Finding, match="from element 0 on"):
        large._compare(torch.tensor([2**60 + 1, 3]), right, 0)
    with pytest.raises(Finding, match="has shape"):
        large._compare(right[:1], right, 0)


@pytest.mark.parametrize("outcome", ["right", "wrong", "too large", "too large to draw"])
def test_no_tensor_outlives_a_case(outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @ow.op(name=f"outlives_{outcome.replace(' ', '_')}")
    def op(x: Tensor) -> Tensor:
        return x + 1

    @op.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        if outcome == "too large":
            raise torch.cuda.OutOfMemoryError
        return x + 2 if outcome == "wrong" else x + 1

    @op.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        made = make(3, 5)
        if outcome == "too large to draw" and made.device.type != "meta":
            raise torch.cuda.OutOfMemoryError
        yield made

    monkeypatch.setattr(large, "MANY", MANY)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    left: list[list[int]] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.append(sizes()))
    expected: dict[str, contextlib.AbstractContextManager[Any]] = {
        "right": contextlib.nullcontext(),
        "wrong": pytest.raises(Finding, match="wrong from element 0 on"),
    }
    with expected.get(outcome) or pytest.raises(NotApplicable, match="memory does not suffice"):
        large.check(Subject(op, "cpu", 0), Case(0, torch.float32, extra="strided"))
    assert left == [[]]


MANY = 2**20 + 9


def sizes() -> list[int]:
    """Of the large tensors that there are."""
    return [o.numel() for o in gc.get_objects() if issubclass(type(o), Tensor) and MANY // 2 < o.numel() < 4 * MANY]


def test_its_lock_lies_where_nobody_else_can_make_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "everybody"))
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    with large.turn(), lockfile.opened(tmp_path / "cache" / "locks" / "large") as lock:
        assert not lockfile.take(lock, wait=False)
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", "/dev/null/cache")
    with large.turn():
        pass  # without a place for a lock there is none


def test_an_author_may_draw_indices_beside_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, with the maker's generator, as everywhere in the check; a size that they grow with is left alone."""
    sizes: list[int] = []

    @ow.op(name="picked_rows")
    def op(x: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        ow.require(weight.shape == rows.shape, "weight must be of the rows")
        return x[rows] * weight[:, None]

    @op.kernel("cpu")
    def _(x: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        return x[rows] * weight[:, None]

    @op.samples
    def _(make: ow.Maker) -> Iterator[tuple[Tensor, ...]]:
        x, targets = make(7, 3), make(5)
        rows = torch.randint(0, x.shape[0], (2 * targets.shape[0],), generator=make.generator)
        sizes.append(rows.numel())
        yield x, rows.to(make.device), make(10)

    monkeypatch.setattr(large, "MANY", MANY)
    monkeypatch.setattr(large, "MADE", 4096)
    # A generator of the GPU cannot draw on the CPU; here each device has the CPU's, so that it is told by its name.
    made = large._Shapes(torch.float32, "cpu", 0)
    assert made.generator is not made.there
    x, rows, weight = large._stretched(Subject(op, "cpu", 0), Case(0, torch.float32, extra="contiguous")).args
    assert x.shape[1] == 3 or x.shape[0] == 7
    assert x.numel() >= MANY
    assert rows.shape == weight.shape == (10,)
    assert max(sizes) <= 2 * large.MADE
