"""What an operator's author tells compilers with tags."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tag, Tensor

import opwright as ow


def define(tags: Any, **options: Any) -> ow.Op[..., Any]:
    @ow.op(namespace="tagged", opaque=True, tags=tags, **options)
    def mark(x: Tensor) -> Tensor:
        return x * 2

    return mark


def test_every_operator_is_pt2_compliant_as_those_of_custom_op_are() -> None:
    for overload in (torch.ops.opwright.linear.default, torch.ops.opwright.linear_backward.default):
        assert overload.tags == [Tag.pt2_compliant_tag]


def test_tags_stand_on_the_operator_and_on_what_comes_with_it() -> None:
    op = define((Tag.cudagraph_unsafe, Tag.pointwise), name="marked")
    assert set(torch.ops.tagged.marked.default.tags) == {Tag.pt2_compliant_tag, Tag.cudagraph_unsafe, Tag.pointwise}
    assert set(op.backward.overload.tags) == {Tag.pt2_compliant_tag, Tag.cudagraph_unsafe}
    op.saving("twice")(lambda x: (x * 2, x * 2))
    assert op.saving_form is not None
    assert set(op.saving_form.overload.tags) == set(op.overload.tags) == set(ow.in_place(op).overload.tags)


def test_one_tag_needs_no_tuple_and_random_keeps_its_own() -> None:
    op = define(Tag.flexible_layout, name="drawn", random=True)
    expected = {Tag.pt2_compliant_tag, Tag.flexible_layout, Tag.nondeterministic_seeded}
    assert set(op.overload.tags) == expected


def test_other_tags_make_another_operator_of_the_name() -> None:
    first = define((), name="again")
    digest, overload = first.digest, first.overload
    same = define([], name="again")
    assert same.overload is overload
    assert same.digest == digest
    second = define([Tag.cudagraph_unsafe], name="again")
    assert second.digest != digest
    assert second.overload is not overload
    assert Tag.cudagraph_unsafe not in overload.tags
    assert Tag.cudagraph_unsafe in torch.ops.tagged.again.default.tags
    assert torch.equal(torch.ops.tagged.again(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(overload(torch.ones(2)), torch.full((2,), 2.0))


def test_a_tag_is_one_of_pytorchs() -> None:
    with pytest.raises(TypeError, match=r"mark: tags are those of torch\.Tag, .* got 'cudagraph_unsafe'"):
        define(["cudagraph_unsafe"])


def test_compilers_that_want_compliance_take_operators() -> None:
    op = define((), name="strict")
    with torch._dynamo.config.patch(only_allow_pt2_compliant_ops=True):
        out = torch.compile(lambda x: op(x) + 1, backend="aot_eager", fullgraph=True)(torch.ones(2))
    assert torch.equal(out, torch.full((2,), 3.0))
