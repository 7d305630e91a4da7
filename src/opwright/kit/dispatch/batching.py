"""torch.func.vmap by one call of an operator, kernel and all, where its author declares that leading dimensions are a
batch of calls. Elsewhere vmap takes the reference apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from opwright.kit import private
from opwright.kit.spec import words
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op
    from opwright.kit.spec.schema import Signature

Batching = Literal["leading"] | tuple[str, ...]


def read_batching(name: str, signature: Signature, random: bool, given: Any) -> Batching | None:
    """What an author says of leading dimensions: that all tensors have them, or those that are named."""
    if given is None:
        return None
    if random or any(p.mutated for p in signature.parameters):
        raise TypeError(f"{name}: an operator that draws or writes has no vmap= of its own; leave it out")
    known = {p.name: p for p in signature.parameters if p.kind.is_tensor}
    if given == "leading":
        lists = [p.name for p in known.values() if p.kind.is_list]
        if lists:
            raise TypeError(f"{name}: the tensors of {lists[0]!r} do not broadcast; name the tensors, vmap=(…)")
        return "leading"
    alone = isinstance(given, str)
    read = tuple(given) if isinstance(given, Iterable) and not alone else ()
    if not read or any(each not in known for each in read):
        hint = f"; write vmap=({given!r},)" if alone and given in known else words.near(given, ["leading"])
        raise TypeError(f"{name}: vmap is 'leading' or some of its tensors ({', '.join(known)}), got {given!r}{hint}")
    return read


def keeps_kernels(op: Op[..., Any]) -> bool:
    """Whether all active transforms are ones that the operator goes through whole: gradients and, as declared, vmap."""
    kinds = {layer.key() for layer in private.transforms() or []}
    return kinds <= {private.TransformType.Grad} | ({private.TransformType.Vmap} if op.spec.vmap else set())


def innermost_is_vmap() -> bool:
    """Whether the transform to be served next is vmap."""
    layer = private.innermost_transform()
    return layer is not None and layer.key() == private.TransformType.Vmap


def run(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One call for all rows of the innermost vmap; the reference, where a row is not the same call as the batch."""
    level = private.innermost_transform().level()
    given = op.signature.bind(args, kwargs)
    taken = {name: _each(value, lambda t: private.unwrap_batched(t, level)) for name, value in given.items()}
    batched = [t.shape[dim] for value in taken.values() for t, dim in _pairs(value) if dim is not None]
    if not batched or not _is_one_call(op, taken):
        return op.run_transformed(*args, **kwargs)
    count = batched[0]  # as large as the others, or vmap had refused them
    everywhere = op.spec.vmap == "leading"
    named = taken if everywhere else {name: taken[name] for name in op.spec.vmap or ()}
    rank = max(_rank(*pair) for value in named.values() for pair in _pairs(value))

    def lead(t: Tensor, dim: int | None) -> Tensor:
        whole = t.expand(count, *t.shape) if dim is None else t.movedim(dim, 0)
        for _ in range(rank + 1 - whole.dim() if everywhere else 0):
            whole = whole.unsqueeze(1)
        return whole

    with private.next_transform():
        values = {name: _each(value, lambda pair: pair[0], tuple) for name, value in taken.items()}
        values |= {name: _each(value, lambda pair: lead(*pair), tuple) for name, value in named.items()}
        positional, keywords = op.signature.encode(values)
        out = op.overload(*positional, **keywords)
        for t in tensors(out):
            if t.dim() == 0 or t.shape[0] != count:
                raise ValueError(
                    f"{op.name}: vmap={op.spec.vmap!r} promises that leading dimensions are a batch, and {count} rows "
                    f"gave a result of shape {tuple(t.shape)}; leave vmap out"
                )
    return _each(out, lambda t: private.wrap_batched(t, level))


def _is_one_call(op: Op[..., Any], taken: dict[str, Any]) -> bool:
    """Whether a row is the same call as the batch: only what is named is batched, and no tensor without dimensions,
    which counts less for the result's dtype and may lie elsewhere, gets one beside tensors of another kind."""
    names = op.spec.vmap or ()
    if names != "leading" and any(
        dim is not None for name, value in taken.items() if name not in names for _, dim in _pairs(value)
    ):
        return False
    pairs = [pair for value in taken.values() for pair in _pairs(value)]
    bare = any(_rank(*pair) == 0 for pair in pairs)
    return not bare or len({(t.dtype, t.device) for t, _ in pairs}) == 1


def _rank(t: Tensor, dim: int | None) -> int:
    return t.dim() - (dim is not None)


def _pairs(value: Any) -> list[tuple[Tensor, int | None]]:
    """The tensors of an unwrapped argument, each with its batch dimension."""
    if isinstance(value, tuple):
        return [value]
    return [v for v in value if isinstance(v, tuple)] if isinstance(value, list) else []


def _each(value: Any, function: Any, kind: type = Tensor) -> Any:
    """A value, or a list of them, with a function applied to those of a kind."""
    if isinstance(value, kind):
        return function(value)
    return [_each(v, function, kind) for v in value] if isinstance(value, (list, tuple)) else value
