"""Operators whose rules of sharding are wrong."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


def matrices(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 6)
        yield make(5, 3)


def products(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 6), make(3, 6), make(3)
        yield make(5, 2), make(4, 2), make(4)


@ow.op(namespace="broken_rules")
def bias_twice(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.t() + bias


bias_twice.samples(products)
bias_twice.shard("x[b, k] weight[n, k] bias[n] -> [b, n]", sums="k")


@ow.op(namespace="broken_rules")
def relu_of_sum(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(x @ weight.t() + bias)


relu_of_sum.samples(products)
relu_of_sum.shard("x[b, k] weight[n, k] bias[n] -> [b, n]", sums="k", once="bias")


@ow.op(namespace="broken_rules")
def softmax_cut(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


softmax_cut.samples(matrices)
softmax_cut.shard("x[b, k] -> [b, k]")


@ow.op(namespace="broken_rules")
def flag_forgotten(x: Tensor, *, columns: bool = False) -> Tensor:
    return torch.softmax(x, 0 if columns else 1)


@flag_forgotten.samples
def _(make: ow.Maker) -> Iterator[Any]:
    for x in matrices(make):
        yield x
        yield x, {"columns": True}


flag_forgotten.shard("x[b, k] -> [b, k]", over="b")


@ow.op(namespace="broken_rules")
def mean_of_means(x: Tensor) -> Tensor:
    return x.mean(0)


mean_of_means.samples(matrices)
mean_of_means.shard("x[b, k] -> [k]", sums="b")


@ow.op(namespace="broken_rules")
def batch_statistics(x: Tensor) -> Tensor:
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, unbiased=False) + 1e-3)


batch_statistics.samples(matrices)
batch_statistics.shard("x[b, k] -> [b, k]", over="b")


@ow.op(namespace="broken_rules")
def cumulative(x: Tensor) -> Tensor:
    return x.cumsum(1)


cumulative.samples(matrices)
cumulative.shard("x[b, k] -> [b, k]")


@ow.op(namespace="broken_rules")
def padded_edges(x: Tensor) -> Tensor:
    wide = torch.nn.functional.pad(x, (1, 1))
    return wide[:, :-2] - 2 * wide[:, 1:-1] + wide[:, 2:]


padded_edges.samples(matrices)
padded_edges.shard("x[b, n] -> [b, n]")


@ow.op(namespace="broken_rules")
def transposed_wrong(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


@transposed_wrong.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 6), make(6, 6)


transposed_wrong.shard("x[b, k] weight[n, k] -> [b, n]", sums="k")
transposed_wrong.backward.shard("grad[b, n] x[b, k] weight[k, n] -> grad_x[b, k] grad_weight[k, n]", over="n", sums="n")


@ow.op(namespace="broken_rules")
def largest_as_sum(x: Tensor) -> Tensor:
    return x.amax(1)


largest_as_sum.samples(matrices)
largest_as_sum.shard("x[b, k] -> [b]", sums="k")


@ow.op(namespace="broken_rules")
def sorted_pieces(x: Tensor) -> Tensor:
    return x.sort(1).values


sorted_pieces.samples(matrices)
sorted_pieces.shard("x[b, n] -> [b, n]")


@ow.op(namespace="broken_rules")
def divided_by_size(x: Tensor) -> Tensor:
    return x / max(x.shape[0], 1)


divided_by_size.samples(matrices)
divided_by_size.shard("x[b, k] -> [b, k]")


@ow.op(namespace="broken_rules")
def positions(x: Tensor) -> Tensor:
    return x + torch.arange(x.shape[1], dtype=x.dtype, device=x.device)


positions.samples(matrices)
positions.shard("x[b, n] -> [b, n]")


@ow.op(namespace="broken_rules")
def flipped(x: Tensor) -> Tensor:
    return x.flip(1)


flipped.samples(matrices)
flipped.shard("x[b, n] -> [b, n]")


@ow.op(namespace="broken_rules")
def keys_cut(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.t(), 1) @ v


@keys_cut.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 3), make(6, 3), make(6, 2)


keys_cut.shard("q[n, d] k[m, d] v[m, e] -> [n, e]", over="n e", sums="m")


@ow.op(namespace="broken_rules")
def product_of_sums(x: Tensor, y: Tensor) -> Tensor:
    return x.sum(1) * y.sum(1)


@product_of_sums.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 6), make(4, 6)


product_of_sums.shard("x[b, k] y[b, k] -> [b]", sums="k")


@ow.op(namespace="broken_rules")
def tape_turned(x: Tensor) -> Tensor:
    return torch.tanh(x)


@tape_turned.saving("tape")
def _(x: Tensor) -> Any:
    y = torch.tanh(x)
    return y, (1 - y * y).t().contiguous()


@tape_turned.gradient
def _(grad: Tensor, tape: Tensor) -> Tensor:
    return grad * tape.t()


@tape_turned.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 4)


tape_turned.shard("x[b, k] -> [b, k] [b, k]")


@ow.op(namespace="broken_rules")
def needs_two_rows(x: Tensor) -> Tensor:
    ow.require(x.shape[0] >= 2, "x must have two rows, got {x.shape}")
    return x * 2


needs_two_rows.samples(matrices)
needs_two_rows.shard("x[b, k] -> [b, k]")


@ow.op(namespace="broken_rules")
def once_in_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x @ weight.t()) * bias


once_in_product.samples(products)
once_in_product.shard("x[b, k] weight[n, k] bias[n] -> [b, n]", sums="k", once="bias")


@ow.op(namespace="broken_rules")
def pairs(x: Tensor) -> Tensor:
    even = x.shape[1] // 2 * 2
    turned = x[:, :even].reshape(x.shape[0], even // 2, 2).flip(2).reshape(x.shape[0], even)
    return torch.cat((turned, x[:, even:]), 1)


@pairs.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(2, 8)


pairs.shard("x[b, n] -> [b, n]")


@ow.op(namespace="broken_rules")
def one_of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.amax(0)


one_of_two.samples(matrices)
one_of_two.shard("x[b, k] -> [b, k] [k]", sums="b")


@ow.op(namespace="broken_rules")
def once_rectified(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.t() + torch.relu(bias)


once_rectified.samples(products)
once_rectified.shard("x[b, k] weight[n, k] bias[n] -> [b, n]", sums="k", once="bias")


@ow.op(namespace="broken_rules")
def once_largest(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.t() + bias.amax()


once_largest.samples(products)
once_largest.shard("x[b, k] weight[n, k] bias[_] -> [b, n]", sums="k", once="bias")


@ow.op(namespace="broken_rules")
def once_median(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.t() + bias.sort().values[bias.shape[0] // 2]


once_median.samples(products)
once_median.shard("x[b, k] weight[n, k] bias[_] -> [b, n]", sums="k", once="bias")


@ow.op(namespace="broken_rules")
def once_in_rows(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    return x + start, x.sum(0) + start


@once_in_rows.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 6), make(6)


once_in_rows.shard("x[r, k] start[k] -> [r, k] [k]", sums="r", once="start")


@ow.op(namespace="broken_rules")
def by_parity(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] % 2 else x * 3


by_parity.samples(matrices)
by_parity.shard("x[b, k] -> [b, k]")


@ow.op(namespace="broken_rules")
def count_in_a_tensor(x: Tensor) -> Tensor:
    return x / x.new_tensor(float(max(x.shape[0], 1)))


count_in_a_tensor.samples(matrices)
count_in_a_tensor.shard("x[b, k] -> [b, k]")


@ow.op(namespace="broken_rules")
def whole_of_pieces(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.sum(0)


whole_of_pieces.samples(matrices)
whole_of_pieces.shard("x[b, k] -> [b, k] [k]", over="b", whole="1")


@ow.op(namespace="broken_rules")
def channels_in_groups(x: Tensor, weight: Tensor, groups: int = 2) -> Tensor:
    return torch.nn.functional.conv1d(x, weight, groups=groups)


@channels_in_groups.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(2, 4, 5), make(8, 2, 3)


channels_in_groups.shard("x[b, c, _] weight[o, i, _] -> [b, o, _]", over="o")


@ow.op(namespace="broken_rules")
def fits_nothing(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x @ weight.t())


@fits_nothing.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if make.dtype.is_floating_point:
        yield make(4, 6), make(3, 6)


fits_nothing.shard("x[b] weight[n, k] -> [b, n]")


# --- right for the numbers, dtypes and options of the samples alone ---------------------------------------------------


@ow.op(namespace="broken_rules")
def saturates(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x @ weight.t() + bias).clamp(-50, 50)


saturates.samples(products)
saturates.shard("x[b, k] weight[n, k] bias[n] -> [b, n]", sums="k", once="bias")


@ow.op(namespace="broken_rules")
def skips_unless_finite(x: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x).all(), x * 2, torch.zeros_like(x))


skips_unless_finite.samples(matrices)
skips_unless_finite.shard("x[b, k] -> [b, k]")


@ow.op(namespace="broken_rules")
def integers_otherwise(x: Tensor) -> Tensor:
    return x.sum(1) if x.is_floating_point() or x.is_complex() else x.amax(1)


@integers_otherwise.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 6)


integers_otherwise.shard("x[b, k] -> [b]", sums="k")


@ow.op(namespace="broken_rules")
def flag_untried(x: Tensor, *, centred: bool = False) -> Tensor:
    return x - x.mean() if centred else torch.tanh(x)


flag_untried.samples(matrices)
flag_untried.shard("x[b, k] -> [b, k]")
