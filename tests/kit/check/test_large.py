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
from opwright.kit.check import stretch
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties import large
from opwright.kit.check.report import Finding, NotApplicable


def test_a_sample_is_stretched_along_a_size_that_the_operator_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(
        self: stretch.Shapes, *shape: int, dtype: torch.dtype, low: float = 0, high: float = 0
    ) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    monkeypatch.setattr(stretch.Shapes, "fresh", without_memory)
    # Its hidden units and inputs stand in several shapes: of its sizes only the batch can grow by itself.
    sample = large.stretched(Subject(ow.lltm_cell, "cpu", 0), Case(0, torch.bfloat16, extra="contiguous"))
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
        make = stretch.Shapes(torch.bfloat16, "cpu", 7)
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

    monkeypatch.setattr(large, "ELEMENTS", dict.fromkeys(large.ELEMENTS, MANY))
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

    monkeypatch.setattr(large, "ELEMENTS", dict.fromkeys(large.ELEMENTS, MANY))
    monkeypatch.setattr(stretch, "MADE", 4096)
    # A generator of the GPU cannot draw on the CPU; here each device has the CPU's, so that it is told by its name.
    made = stretch.Shapes(torch.float32, "cpu", 0)
    assert made.generator is not made.there
    x, rows, weight = large.stretched(Subject(op, "cpu", 0), Case(0, torch.float32, extra="contiguous")).args
    assert x.shape[1] == 3 or x.shape[0] == 7
    assert x.numel() >= MANY
    assert rows.shape == weight.shape == (10,)
    assert max(sizes) <= 2 * stretch.MADE


# --- what is stretched ----------------------------------------------------------------------------------------------


def searched(op: Any, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The cases of an operator by their ids, with the sizes that they have in place of declared ones."""
    subject = Subject(op, "cpu", 0)
    return {case.id: large._sizes(subject, case) for case in large.cases(subject)}


def test_each_kind_of_number_has_a_case_beyond_what_it_counts() -> None:
    assert searched(ow.cube) == {
        "0.bfloat16.plain.float": {3: 2**25 + 1},
        "0.bfloat16.plain.contiguous": {3: 2**31 + 9},
        "0.bfloat16.plain.strided": {3: 2**31 + 9},
        "1.bfloat16.plain.float": {4: 6710887},
        "1.bfloat16.plain.contiguous": {4: 429496732},
        "1.bfloat16.plain.strided": {4: 429496732},
        "0.bfloat16.plain.unsigned": {3: 2**32 + 9},
    }


def product(name: str, samples: Any, reference: Any) -> Any:
    op = ow.op(name=name)(reference)
    op.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))(reference)
    op.samples(samples)
    return op


def test_two_sizes_grow_together_where_one_depends_on_the_other() -> None:
    def reference(x: Tensor, y: Tensor) -> Tensor:
        ow.require(y.numel() == x.numel(), "y must have as many elements as x")
        return x + y.reshape(x.shape)

    op = product("depending_pair", lambda make: iter([(make(4, 7), make(28))]), reference)
    sizes = searched(op)["0.float32.plain.contiguous"]
    assert sizes.keys() in ({4, 28}, {7, 28})
    assert sizes[28] >= 2**31 + 9
    assert sizes[28] == sizes.get(4, 4) * sizes.get(7, 7)


def test_all_sizes_grow_together_where_two_do_not_suffice() -> None:
    def reference(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.cat([x, y]) + z

    op = product("depending_all", lambda make: iter([(make(4), make(7), make(11))]), reference)
    sizes = searched(op)["0.float32.plain.contiguous"]
    assert sizes.keys() == {4, 7, 11}
    assert sizes[4] + sizes[7] == sizes[11] >= 2**31 + 9


def test_later_samples_are_tried_where_the_first_cannot_grow() -> None:
    def samples(make: ow.Maker) -> Iterator[Any]:
        yield make(4), {"one": torch.zeros(())}
        yield torch.zeros(4, 4)
        yield make(5, 3)
        yield make(6)
        yield make(8)

    def reference(x: Tensor, one: Tensor | None = None) -> Tensor:
        ow.require(one is None or x.shape[0] == 4, "x must have 4 elements")
        return x + 1

    op = product("grows_late", samples, reference)
    assert [case.partition(".float32.plain.")[::2] for case in searched(op)] == [
        ("2", "float"), ("2", "contiguous"), ("2", "strided"), ("3", "float"), ("3", "contiguous"), ("3", "strided"),
        ("2", "unsigned"),
    ]  # fmt: skip


def test_where_nothing_grows_one_case_says_so() -> None:
    op = product("grows_never", lambda make: iter([torch.zeros(4), torch.zeros(5)]), plus_one)
    assert searched(op) == {"0.float32.plain.contiguous": "no size of it can be made so large"}


def plus_one(x: Tensor) -> Tensor:
    return x + 1


def test_what_an_author_makes_beside_on_the_makers_device_takes_no_memory() -> None:
    def samples(make: ow.Maker) -> Iterator[Any]:
        x = make(5, 3)
        yield x + torch.arange(5, device=make.device)[:, None], torch.ones(x.shape[0], device=make.device)

    def reference(x: Tensor, scale: Tensor) -> Tensor:
        ow.require(scale.shape == x.shape[:1], "scale must be of the rows")
        return x * scale[:, None]

    assert searched(product("made_beside", samples, reference))["0.float32.plain.unsigned"] == {3: -(-(2**32 + 9) // 5)}


def test_a_size_that_a_reference_loops_over_is_left_alone() -> None:
    def reference(x: Tensor) -> Tensor:
        return torch.stack([row + 1 for row in x])

    assert searched(product("looped_over", lambda make: iter([make(5, 3)]), reference))[
        "0.float32.plain.contiguous"
    ] == {3: -(-(2**31 + 9) // 5)}


def test_a_search_is_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that did not grow to so many elements do not grow to more, and to find out again takes long."""
    drawn: list[int] = []

    def samples(make: ow.Maker) -> Iterator[Any]:
        x = make(5, 3)
        drawn.append(x.shape[0])
        yield x, torch.zeros(x.shape[0])

    def reference(x: Tensor, rows: Tensor) -> Tensor:
        return x + rows[:, None].to(x.device)

    monkeypatch.setattr(stretch, "MADE", 4096)
    searched(product("searched_once", samples, reference))
    assert [size for size in drawn if size > 4096] == [8192]


# --- what is found --------------------------------------------------------------------------------------------------

COUNTED = 2**19


def tried(op: Any, extra: str, monkeypatch: pytest.MonkeyPatch, free: int = 1 << 40) -> Subject:
    monkeypatch.setattr(large, "ELEMENTS", {"float": MANY, "contiguous": MANY, "strided": MANY, "unsigned": 2 * MANY})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    subject = Subject(op, "cpu", 0)
    large.check(subject, Case(0, torch.float32, extra=extra))
    return subject


def averaging(name: str, most: int) -> Any:
    @ow.op(name=name)
    def op(x: Tensor) -> Tensor:
        return x.mean()

    @op.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        return x.sum() / min(x.numel(), most)

    op.samples(lambda make: iter([make(5), make(3, 2)]))
    return op


def test_a_count_that_ends_too_early_shows_in_numbers_of_one_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(averaging("counts_all", 1 << 60), "float", monkeypatch)
    with pytest.raises(Finding, match="wrong from element 0 on"):
        tried(averaging("counts_some", COUNTED), "float", monkeypatch)


def test_an_unsigned_count_that_wraps_around_is_found_beyond_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @ow.op(name="wraps_around")
    def op(x: Tensor) -> Tensor:
        return x + 1

    @op.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        out = x + 1
        out.view(-1)[x.numel() % (MANY + 1) :] = 0
        return out

    op.samples(lambda make: iter([make(5)]))
    tried(op, "contiguous", monkeypatch)
    with pytest.raises(Finding, match=f"of {2 * MANY} elements is wrong from element {MANY - 1} on"):
        tried(op, "unsigned", monkeypatch)


def test_where_memory_does_not_suffice_for_the_most_elements_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tried(averaging("without_room", 1 << 60), "contiguous", monkeypatch)
    assert large.notes(subject) == []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (30 << 20, 30 << 20))
    with pytest.raises(NotApplicable, match="32 MiB of memory, 30 MiB are free"):
        large.check(subject, Case(0, torch.float32, extra="unsigned"))
    (note,) = large.notes(subject)
    assert note.startswith("without_room was not tried beyond 2³² elements: it takes 32 MiB")
    fresh = Subject(averaging("no_room_at_all", 1), "cpu", 0)
    with pytest.raises(NotApplicable):
        large.check(fresh, Case(0, torch.float32, extra="unsigned"))
    assert large.notes(fresh) == []  # the report says why nothing was
