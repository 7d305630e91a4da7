"""What opwright promises is written down in tests/api.txt, and does not change unnoticed."""

from __future__ import annotations

import pytest

import opwright as ow
from release import api
from release.api import deprecations
from release.api.difference import compare, told
from release.api.entries import read


def test_the_public_names_are_those_of_the_file() -> None:
    written = api.FILE.read_text(encoding="utf-8")
    changes = compare(read(written), read(api.snapshot()))
    if changes:
        pytest.fail(told(changes), pytrace=False)
    assert written == api.snapshot(), "tests/api.txt is out of order: python -m release.api"


@pytest.mark.parametrize(
    "line",
    [
        "function   opwright.load(",
        "class      opwright.Domain(",
        "class      opwright.nn.LLTM(",
        "method     opwright.Op.kernel_file(",
        "method     opwright.tensors.TensorLike.implements(",
        "property   opwright.Op.backward",
        "function   opwright.testing.checks(",
        "operator   opwright::axpby(Tensor x, Tensor y, *, Scalar a=1, Scalar b=1) -> Tensor",
        "operator   opwright::linear_backward(",
        "command    opwright tensors coverage",
        "option     opwright check --seed = 0",
        "argument   opwright new NAME",
        "variable   OPWRIGHT_BUILD",
        "variable   OPWRIGHT_CUDA_SYNC",  # which only C++ reads
        "macro      OPWRIGHT_KERNEL(op, device, function)",
        "c++        <opwright/map.h> opwright::map: ",
        "c++        <opwright/aten.h> opwright::aten::stack: ",
    ],
)
def test_every_sort_of_name_is_in_the_file(line: str) -> None:
    assert f"\n{line}" in api.FILE.read_text(encoding="utf-8")


def test_the_file_does_not_depend_on_the_machine() -> None:
    for entry in read(api.FILE.read_text(encoding="utf-8")):
        if entry.kind != "c++":
            for trace in (" at 0x", "<", "typing.", "ForwardRef", "Optional[", "/home", "/root"):
                assert trace not in str(entry), f"{entry}: this differs from one version or machine to the next"


def test_no_deprecation_is_overdue() -> None:
    assert not deprecations.overdue(ow.__version__)


def test_what_is_deprecated_still_works_and_warns() -> None:
    assert not deprecations.missing(ow.__version__, api.entries())
