"""Operators on a mesh of two dimensions, in four processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.distributed import ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def grid() -> dict[str, Any]:
    return ranks.run("grid.py", 4)


@pytest.mark.parametrize(
    ("name", "placements"),
    [
        ("sigmoid", ["Shard(dim=0)", "Shard(dim=1)"]),
        ("sigmoid twice", ["Shard(dim=0)", "Shard(dim=0)"]),
        ("batch and n", ["Shard(dim=0)", "Shard(dim=1)"]),
        ("batch and k", ["Shard(dim=0)", "Partial(sum)"]),
    ],
)
def test_both_dimensions_of_a_mesh_cut(grid: dict[str, Any], name: str, placements: list[str]) -> None:
    assert grid[name] == {"placements": placements, "moved": 0}


def test_strided_pieces_stay_where_they_are(grid: dict[str, Any]) -> None:
    first, second = grid["strided"]["placements"]
    assert "_StridedShard" in first
    assert second == "Shard(dim=0)"
    assert grid["strided"]["moved"] == 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_graphs_cut_as_well(grid: dict[str, Any], backend: str) -> None:
    assert grid[backend]["placements"] == ["Shard(dim=0)", "Replicate()"]


def test_what_cannot_be_meant_raises_on_every_rank(grid: dict[str, Any]) -> None:
    for name in ("another mesh", "another mesh, elementwise"):
        assert "mesh" in grid["refused"][name].lower()
    assert "linear" in grid["refused"]["another mesh"]
    assert "axpby: y is on DeviceMesh" in grid["refused"]["another mesh, elementwise"]
    assert "mixed torch.Tensor and DTensor" in grid["refused"]["a plain tensor"]
