"""Metadata survives; two sets of it meet by the rule that was chosen."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from opwright.tensors import Annotated


class First(Annotated, merge="first"):
    pass


class Equal(Annotated, merge="equal"):
    pass


def metres(*shape: int) -> Annotated:
    return Annotated(torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape), unit="m")


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: torch.ones(2, 3) * x,
        lambda x: x[0],
        lambda x: x[:, 1:],
        lambda x: x[x > 2],
        lambda x: x.view(3, 2),
        lambda x: x.T,
        lambda x: x.sum(),
        lambda x: x.max(dim=1).values,
        lambda x: torch.stack([torch.zeros(2, 3), x]),
        lambda x: torch.split(x, 1)[1],
        lambda x: torch.nn.functional.softmax(x, dim=0),
        lambda x: x.to(torch.float64),
        lambda x: x.clone().detach(),
        lambda x: torch.einsum("ij->ji", x),
        lambda x: torch.add(torch.ones(2, 3), x, alpha=2),
        lambda x: next(iter(x)),
        lambda x: x.new_zeros(2),
        lambda x: torch.zeros_like(x),
    ],
)
def test_it_survives_operations_views_and_indexing(operation: Callable[[Any], Any]) -> None:
    x = metres(2, 3)
    result = operation(x)
    assert type(result) is Annotated
    assert result.metadata == {"unit": "m"}
    assert torch.equal(result.plain(), operation(x.plain()))


def test_it_is_a_tensor() -> None:
    x = metres(2)
    assert isinstance(x, torch.Tensor)
    assert torch.is_tensor(x)
    assert x.tolist() == [1.0, 2.0]
    assert f"{x[1]:.1f}" == "2.0"


def test_making_one_shares_memory_and_keeps_the_graph() -> None:
    t = torch.ones(2, requires_grad=True)
    x = Annotated(t, unit="m")
    assert x.data_ptr() == t.data_ptr()
    (x * x).sum().backward()
    assert torch.equal(t.grad, torch.full((2,), 2.0))  # type: ignore[arg-type]


def test_it_may_be_a_leaf_itself() -> None:
    x = metres(3).requires_grad_()
    loss = (x**2).sum()
    loss.backward()
    assert loss.metadata == {"unit": "m"}
    assert torch.equal(x.grad.as_subclass(torch.Tensor), 2 * x.detach().plain())  # type: ignore[union-attr]


def test_it_trains_as_a_modules_input() -> None:
    layer = torch.nn.Linear(3, 1)
    result = layer(metres(2, 3))
    assert result.metadata == {"unit": "m"}
    result.sum().backward()
    assert layer.weight.grad is not None
    assert type(layer.weight.grad) is torch.Tensor


def test_it_is_copied_pickled_and_loaded_with_weights_only() -> None:
    x = Annotated(torch.ones(2), names=["a", "b"])
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), torch.load(file, weights_only=True)["x"]):
        assert type(twin) is Annotated
        assert twin.metadata == {"names": ["a", "b"]}
        assert twin.metadata["names"] is not x.metadata["names"]
        assert torch.equal(twin.plain(), x.plain())
        assert twin.data_ptr() != x.data_ptr()


def test_deepcopy_keeps_the_gradient_shared_memory_and_identity() -> None:
    x = metres(2).requires_grad_()
    x.sum().backward()
    one, two, same = copy.deepcopy([x, x.detach(), x])
    assert one is same
    assert one.requires_grad
    assert torch.equal(one.grad.as_subclass(torch.Tensor), torch.ones(2))  # type: ignore[union-attr]
    assert one.data_ptr() == two.data_ptr()
    with pytest.raises(RuntimeError, match=r"only a leaf of the autograd graph can be copied.*copy its \.detach\(\)"):
        copy.deepcopy(x * 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_it_survives_the_collation_of_a_dataloader(workers: int) -> None:
    samples: Any = [Annotated(torch.full((2,), float(i)), unit="m", first=i) for i in range(4)]
    batches = list(DataLoader(samples, batch_size=2, num_workers=workers))
    assert [type(b) for b in batches] == [Annotated, Annotated]
    assert [b.metadata for b in batches] == [{"unit": "m", "first": 0}, {"unit": "m", "first": 2}]
    assert batches[1].tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_union_takes_every_key_and_the_first_value() -> None:
    x, y = Annotated(torch.ones(1), a=1, b=1), Annotated(torch.ones(1), b=2, c=2)
    assert (x + y).metadata == {"a": 1, "b": 1, "c": 2}
    assert torch.cat([y, x]).metadata == {"b": 2, "c": 2, "a": 1}


def test_first_takes_the_first_argument_alone() -> None:
    x, y = First(torch.ones(1), a=1), First(torch.ones(1), b=2)
    assert (x + y).metadata == {"a": 1}
    assert torch.add(torch.ones(1), y).metadata == {"b": 2}  # type: ignore[attr-defined]


def test_equal_demands_equality_and_names_what_differs() -> None:
    x, y = Equal(torch.ones(1), a=1, b=1), Equal(torch.ones(1), a=1, b=2)
    assert (x + x).metadata == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match=r"torch.add: the metadata .* must be equal, got b=1 and b=2"):
        torch.add(x, y)
    with pytest.raises(ValueError, match="got a=1, b=1 and none"):
        x * Equal(torch.ones(1))


def test_equal_takes_tensors_and_arrays_as_values() -> None:
    x = Equal(torch.ones(1), scale=torch.tensor([1.0, 2.0]), bins=np.arange(3), both=[torch.ones(1)])
    same = Equal(torch.ones(1), scale=torch.tensor([1.0, 2.0]), bins=np.arange(3), both=[torch.ones(1)])
    assert list((x + same).metadata) == ["scale", "bins", "both"]
    with pytest.raises(ValueError, match=r"got scale=tensor\(\[1., 2.\]\) and scale=tensor\(\[1., 3.\]\)"):
        x + same.annotated(scale=torch.tensor([1.0, 3.0]))
    with pytest.raises(ValueError, match="got bins="):
        x + same.annotated(bins=np.arange(1, 4))


def test_equal_refuses_before_anything_is_written() -> None:
    x, y = Equal(torch.ones(1), a=1), Equal(torch.ones(1), a=2)
    with pytest.raises(ValueError, match="must be equal"):
        x += y
    assert x.item() == 1


def test_the_deeper_subclass_chooses_the_rule() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        Annotated(torch.ones(1), a=1) + Equal(torch.ones(1), a=2)


def test_in_place_keeps_ones_own_and_out_takes_the_results() -> None:
    x, y = Annotated(torch.ones(1), a=1), Annotated(torch.ones(1), b=2)
    x += y
    assert x.metadata == {"a": 1}
    out = Annotated(torch.empty(1), old=True)
    assert torch.add(x, y, out=out).metadata == {"a": 1, "b": 2}  # type: ignore[attr-defined]


def test_results_do_not_share_their_mapping() -> None:
    x = metres(1)
    y = x + 1
    assert y.metadata is not x.metadata
    with pytest.raises(TypeError):
        x.metadata["unit"] = "s"  # type: ignore[index]


def test_annotated_adds_and_replaces() -> None:
    x = metres(1)
    assert x.annotated(unit="km", source="gps").metadata == {"unit": "km", "source": "gps"}
    assert x.metadata == {"unit": "m"}
    assert Annotated(x, tensor=1, self=2).metadata == {"unit": "m", "tensor": 1, "self": 2}


def test_an_unknown_rule_is_an_error_at_the_class() -> None:
    with pytest.raises(ValueError, match="merge must be 'first', 'union' or 'equal', got 'last'"):

        class Last(Annotated, merge="last"):  # type: ignore[arg-type]
            pass


def test_it_prints_its_metadata() -> None:
    assert repr(metres(2)) == "Annotated(tensor([1., 2.]), unit='m')"
    assert str(metres(2)) == "Annotated(tensor([1., 2.]), unit='m')"


def test_it_prints_its_own_history() -> None:
    leaf = metres(2).requires_grad_()
    assert repr(leaf) == "Annotated(tensor([1., 2.], requires_grad=True), unit='m')"
    assert "tensor([2., 4.], grad_fn=<" in repr(leaf * 2)


def test_torch_compile_leaves_the_graph_and_keeps_the_metadata() -> None:
    def f(x: Any) -> Any:
        return (x * 2).sin()

    x = metres(3)
    result = torch.compile(f, backend="aot_eager")(x)
    assert result.metadata == {"unit": "m"}
    assert torch.equal(result.plain(), f(x.plain()))


def test_torch_compile_says_why_it_cannot_hold_it_in_one_graph() -> None:
    with pytest.raises(RuntimeError, match="graphs_hold_no_metadata"):
        torch.compile(lambda x: x * 2, fullgraph=True, backend="aot_eager")(metres(3))
    assert torch.compile(lambda x: x * 2, fullgraph=True, backend="aot_eager")(metres(3).plain())[0] == 2
