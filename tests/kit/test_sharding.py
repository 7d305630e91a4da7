"""What may be said about sharding, what follows from it, and what explain and the check say of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.derive import shard
from opwright.kit.spec.shard import PARTIAL, REPLICATE, Misfit, elementwise, read
from tests.kit.recording import Define

LINEAR = "x[..., k] weight[n, k] bias[n] -> [..., n]"


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


# --- rules --------------------------------------------------------------------------------------------------------


def test_a_dimension_of_inputs_and_results_cuts_them_together() -> None:
    rules = {r.dimension: r for r in read("f", LINEAR, sums="k", once="bias").rules({"x": (6, 4), "weight": (8, 4)})}
    assert list(rules) == ["n", "...[0]", "k"]
    assert rules["n"].inputs == {"x": REPLICATE, "weight": 0}
    assert rules["n"].outputs == (1,)
    assert rules["...[0]"].inputs == {"x": 0, "weight": REPLICATE}


def test_a_sum_gives_summands_in_which_a_term_counts_once() -> None:
    shapes = {"x": (2, 3, 4), "weight": (8, 4), "bias": (8,)}
    (rule,) = [r for r in read("f", LINEAR, sums="k", once="bias").rules(shapes) if r.dimension == "k"]
    assert rule.inputs == {"x": 2, "weight": 1, "bias": PARTIAL}
    assert rule.outputs == (PARTIAL,)


def test_what_is_broadcast_is_not_cut() -> None:
    rules = elementwise(["x", "y"], 1).rules({"x": (6, 1), "y": (8,)})
    assert [(r.inputs, r.outputs) for r in rules] == [
        ({"x": 0, "y": REPLICATE}, (0,)),
        ({"x": REPLICATE, "y": 0}, (1,)),
    ]


def test_gradients_are_transposed_to_every_order(define: Define) -> None:
    op = define(affine)
    op.samples(lambda make: iter([(make(6, 4), make(8, 4), make(8)), (make(2, 3, 4), make(8, 4))]))
    op.shard(LINEAR, sums="k", once="bias")
    author, sharding = shard.declared(op.backward) or (None, None)
    assert author is op
    assert sharding is not None
    shapes: dict[str, Any] = {"grad": (6, 8), "x": (6, 4), "weight": (8, 4), "bias": (8,)}
    first = {r.dimension: r for r in shard.rules(op.backward, op, sharding, shapes, ())}
    assert first["...[0]"].outputs == (0, PARTIAL, PARTIAL)
    assert first["n"].outputs == (PARTIAL, 0, 0)
    assert first["k"].inputs["grad"] == REPLICATE
    assert first["k"].outputs == (1, 1, REPLICATE)
    above = op.backward.backward
    shapes |= {"grad_grad_x": (6, 4), "grad_grad_weight": (8, 4), "grad_grad_bias": (8,)}
    second = {r.dimension: r for r in shard.rules(above, op, sharding, shapes, ())}
    assert second["...[0]"].inputs["grad_grad_weight"] == REPLICATE
    assert second["...[0]"].outputs[:2] == (0, 0)
    assert second["...[0]"].outputs[2] == PARTIAL
    assert ow.check(op, only=["sharding"]).passed


# --- mistakes -----------------------------------------------------------------------------------------------------

MISTAKES = [
    ("x[b, k] weight[n, k]", {}, "shard takes patterns such as"),
    ("x[b, k weight[n, k] -> [b, n]", {}, "cannot read"),
    ("x[b, k] weight[n, k] -> ", {}, "after ->"),
    ("y[b, k] -> [b, k]", {}, "names 'y'; the tensors of NAME are x, weight, bias"),
    ("x[b, k] weight[n, k] -> [b, n]", {"over": "m"}, "over names the dimension 'm', which is in no input"),
    ("x[b, k] weight[n, k] -> [b, n]", {"sums": "m"}, "sums names the dimension 'm'"),
    ("x[b, k] weight[n, k] -> [b, n]", {"sums": "n"}, "sums names 'n', which every result has"),
    ("x[b, k] weight[n, k] -> [b, n]", {"over": "k"}, "'k' cannot be cut: result 0 lacks it"),
    ("x[b, k] weight[3*n, k] -> [b, n]", {"over": "n"}, "over names the dimension 'n', which stands in products"),
    ("x[b, b] weight[n, b] -> [b, n]", {"over": "b"}, "x has it twice"),
    ("x[b, k] weight[n, k] -> [b, n]", {"once": "bias"}, "no dimension is summed"),
    ("x[b, k] weight[n, k] -> [b, n]", {"sums": "k", "once": "weight"}, "once names 'weight', which has 'k' itself"),
    ("x[b, k] weight[n, k] -> [b, n]", {"sums": "k", "once": "bais"}, "once names 'bais'"),
    ("x[b, k] weight[n, k] -> [b, n] [b]", {}, "2 results are described"),
    ("-> [b, n]", {}, "no kernel's domain has sizes"),
    ("x[b, k] weight[n, k] -> [b, n]", {"over": 3}, "over must be names"),
    ("x[b, k] weight[n, k] -> [b, n]", {"group": "world"}, "group names 'world', which is no parameter"),
    ("x[b, k] weight[n, k] -> [b, n]", {"group": ("x", "size")}, "group names 'size', which is no parameter"),
    ("x[b, k] weight[n, k] -> [b, n]", {"across": "b"}, "across names 'b', and no group communicates"),
    ("x[b, k] weight[n, k] -> [b, n]", {"over": "n", "group": "x", "across": "b"}, "'b', which is not cut; cut are n"),
    ("x[b, k] weight[n, k] -> [b, n]", {"whole": "mean"}, "whole names the result 'mean'; described are 0"),
    ("x[b, k] weight[n, k] -> [b, m]", {}, "result 0[b, m] has the dimension 'm', which no input has; write _"),
    ("x[b, k] weight[n, k] -> [..., n]", {}, "result 0[..., n] has leading dimensions, which no input has"),
    ("x[b, k] x[k, b] weight[n, k] -> [b, n]", {}, "x has two patterns, x[b, k] and x[k, b]"),
]


@pytest.mark.parametrize(("patterns", "options", "says"), MISTAKES, ids=lambda v: v if isinstance(v, str) else None)
def test_a_rule_that_cannot_be_meant_is_an_error(
    define: Define, patterns: str, options: dict[str, Any], says: str
) -> None:
    op = define(affine)
    with pytest.raises((ValueError, TypeError)) as raised:
        op.shard(patterns, **options)
    assert str(raised.value).startswith(f"{op.name}: ")
    assert says.replace("NAME", op.name) in str(raised.value)
    assert op.spec.sharding is None


@pytest.mark.parametrize("kernel_first", [True, False])
@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ("x[b, k] weight[8, k]", "'n' of weight is to be cut"),
        ("x[b, k] weight[b, k]", "must be cut with it"),
        ("x[b, k] weight[n, k, j]", "has 2 dimensions, and its domain has weight[n, k, j]"),
    ],
)
def test_a_rule_that_contradicts_the_domain_is_an_error(
    define: Define, kernel_first: bool, sizes: str, says: str
) -> None:
    op = define(affine)
    calls: list[Any] = [
        lambda: op.kernel("cpu", ow.Domain(sizes=sizes))(op.reference),
        lambda: op.shard("x[b, k] weight[n, k] bias[n] -> [b, n]"),
    ]
    first, second = calls if kernel_first else calls[::-1]
    first()
    before = op.spec
    with pytest.raises(ValueError, match="shard") as raised:
        second()
    assert says in str(raised.value)
    assert op.spec is before


def test_an_operator_that_draws_or_writes_has_no_rule() -> None:
    @ow.op(name="sharded_noise", random=True)
    def noise(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    with pytest.raises(TypeError, match="sharded_noise: shard is for operators that neither draw"):
        noise.shard("x[n] -> [n]")


def test_an_operator_with_a_list_of_tensors_has_no_rule() -> None:
    @ow.op(name="sharded_list")
    def total(x: Tensor, more: list[Tensor]) -> Tensor:
        return x + sum(more)

    with pytest.raises(TypeError, match="sharded_list: shard: more is a list of tensors, of which there are no rules"):
        total.shard("x[n] -> [n]")


def test_a_rule_is_for_tensors_that_fit_its_patterns() -> None:
    rules = read("f", "x[b, k] y[b, k] -> [b]", sums="k").rules
    assert len(rules({"x": (4, 2), "y": (4, 2)})) == 2
    for shape in ((4, 1), (1, 2), (2,)):
        with pytest.raises(Misfit, match="y has shape"):
            rules({"x": (4, 2), "y": shape})
    with pytest.raises(Misfit, match="result 0 has shape"):
        rules({"x": (4, 2), "y": (4, 2)}, [(2,)])
    with pytest.raises(Misfit, match="do not broadcast"):
        elementwise(["x", "y"], 1).rules({"x": (6, 3), "y": (6, 4)})


def test_a_term_counts_once_where_only_some_results_are_sums() -> None:
    rules = read("f", "x[r, k] start[k] -> [r, k] [k]", sums="r", once="start").rules({"x": (4, 2), "start": (2,)})
    assert {r.dimension: r.inputs["start"] for r in rules} == {"r": PARTIAL, "k": 0}


def test_an_extra_result_must_be_described(define: Define) -> None:
    op = define(affine)
    op.shard("x[b, k] weight[n, k] bias[n] -> [b, n]", over="b")
    op.saving("twice")(lambda x, weight, bias: (affine(x, weight, bias), 2 * x))
    with pytest.raises(TypeError, match="shard must describe the extra result 'twice'"):
        shard.rules(op.saving_form, op, op.spec.sharding, {"x": (4, 2), "weight": (3, 2)}, ())  # type: ignore[arg-type]


# --- what is said ---------------------------------------------------------------------------------------------------


def test_the_check_says_what_could_be_declared(define: Define) -> None:
    def gated(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.silu(x @ weight.t())

    op = define(gated)

    @op.samples
    def _(make: ow.Maker) -> Any:
        yield make(4, 6), make(3, 6)
        yield make(5, 3), make(7, 3)

    op.shard("x[b, k] weight[n, k] -> [b, n]", over="b")
    assert ow.check(op, only=["sharding"]).notes == [f'{op.name}: n could be cut as well: over="b n"']


def test_the_check_says_what_no_sample_could_prove(define: Define) -> None:
    def soft(x: Tensor) -> Tensor:
        return x.softmax(1)

    op = define(soft)

    @op.samples
    def _(make: ow.Maker) -> Any:
        yield make(4, 1)
        yield make(1, 1)

    op.shard("x[b, k] -> [b, k]")
    notes = ow.check(op, only=["sharding"]).notes
    assert notes == [f"{op.name}: k was never really cut: no sample has more than one element along it"]


def test_the_check_says_which_tensors_no_sample_gives(define: Define) -> None:
    def masked(x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x.softmax(1) if mask is None else x.softmax(1) * mask.sum()

    op = define(masked)
    op.samples(lambda make: iter([make(4, 6)] if make.dtype.is_floating_point else []))
    op.shard("x[b, k] mask[b] -> [b, k]", over="b")
    notes = ow.check(op, only=["sharding"]).notes
    assert notes == [f"{op.name}: what shard says of mask was never tried: no sample gives it"]


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.conv1d(x, weight, padding=1)  # of no channels PyTorch makes another shape


def grown(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp(), x.sum(0) + rows  # exp overflows where the numbers are large


RIGHT: list[Any] = [
    (convolved, [(3, 4, 7), (5, 4, 3)], "x[b, c, _] weight[o, c, _] -> [b, o, _]", {"sums": "c"}),
    (grown, [(4, 6), (6,)], "x[b, k] rows[k] -> [b, k] [k]", {"sums": "b", "once": "rows"}),
]


@pytest.mark.parametrize(("function", "sizes", "text", "said"), RIGHT, ids=["of nothing", "overflows"])
@pytest.mark.parametrize("seed", range(2))
def test_a_right_sum_is_not_accused(define: Define, function: Any, sizes: Any, text: str, said: Any, seed: int) -> None:
    op = define(function)
    op.samples(lambda make: iter([tuple(make(*n) for n in sizes)] if make.dtype.is_floating_point else []))
    op.shard(text, **said)
    report = ow.check(op, only=["sharding"], seed=seed)
    assert report.passed, report


def test_summands_of_gradients_have_a_rule_of_their_own_at_every_order(define: Define) -> None:
    op = define(affine)
    op.samples(lambda make: iter([(make(6, 4), make(8, 4), make(8))]))
    op.shard(LINEAR, sums="k", once="bias")
    _, sharding = shard.declared(op) or (None, None)
    assert sharding is not None
    shapes: dict[str, Any] = {"grad": (6, 8), "x": (6, 4), "weight": (8, 4), "bias": (8,)}
    shapes |= {"grad_grad_x": (6, 4), "grad_grad_weight": (8, 4), "grad_grad_bias": (8,)}
    names = [r.dimension for r in shard.rules(op.backward.backward, op, sharding, shapes, ())]
    assert len(names) == len(set(names))  # each is a case of the check's
    assert {"gradients", "gradients2"} <= set(names)


def test_explain_says_along_what_dtensors_may_be_cut() -> None:
    (step,) = [s for s in ow.explain(ow.linear).steps if s.name == "sharding"]
    assert (step.runs, step.why) == ("declared", "DTensors may be cut along n, ..., k (a sum)")


REDUCTIONS: dict[str, Any] = {
    "mean": lambda x: x.mean(0),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0, keepdim=True),
    "prod": lambda x: x.prod(0),
    "every": lambda x: (x > 0).all(0),
    "some": lambda x: (x > 0).any(0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_pieces_of_what_is_no_sum_are_joined_as_pytorch_joins_them(name: str) -> None:
    function = REDUCTIONS[name]

    def reduced(x: Tensor) -> Tensor:
        return function(x)  # type: ignore[no-any-return]

    op = ow.op(name=f"reduced_by_{name}")(reduced)
    op.kernel("cpu")(reduced)

    @op.samples
    def _(make: ow.Maker) -> Any:
        if make.dtype.is_floating_point:
            yield make(4, 6)

    report = ow.check(op, only=["sharding"])
    assert report.passed, report
    assert sum(r.cases for r in report.results) > 0


# --- a collective inside --------------------------------------------------------------------------------------------


def with_collective(name: str, whole: bool) -> ow.Op[..., Any]:
    """An operator that takes the mean of a batch, between devices where it is told which."""

    @ow.op(name=name, opaque=True)
    def centred(x: Tensor, *, group: str = "") -> Tensor:
        from torch.distributed import _functional_collectives

        collectives: Any = _functional_collectives
        total, count = x.sum(0), x.new_tensor(float(x.shape[0]))
        if group and whole:
            total, count = (collectives.wait_tensor(collectives.all_reduce(t, "sum", group)) for t in (total, count))
        return x - total / count.clamp_min(1)

    @centred.gradient
    def _(grad: Tensor, group: str) -> Tensor:
        return centred.reference(grad, group=group)  # type: ignore[no-any-return]

    @centred.samples
    def _(make: ow.Maker) -> Any:
        if make.dtype.is_floating_point:
            yield make(5, 3)
            yield make(4, 2)

    centred.shard("x[b, k] -> [b, k]", over="b", group="group")
    return centred


def test_ranks_that_communicate_are_simulated_in_one_process() -> None:
    assert ow.check(with_collective("centred_between_ranks", True), only=["sharding"]).passed


def test_a_collective_that_is_forgotten_is_found() -> None:
    failures = ow.check(with_collective("centred_alone", False), only=["sharding"]).failures
    assert "cut along b into 2" in failures[0].message


# --- nobody pays who does not use it --------------------------------------------------------------------------------


def test_importing_the_package_does_not_import_dtensor() -> None:
    code = "import opwright, sys; assert 'torch.distributed.tensor' not in sys.modules; print('lean')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "lean", done.stderr
