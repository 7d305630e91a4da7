"""How an operator's tensors may be cut among devices: patterns of its dimensions, and the rules that follow from them.

A rule holds for one dimension of a mesh. It says where each tensor is cut so that every device may run the operator on
what it has, and what its results are then: cut as well, or summands of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from opwright.kit.spec import words
from opwright.kit.spec.domain import Domain
from opwright.kit.spec.require import spell
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.sizes import Dimension, Pattern, misfit_of, parse

REPLICATE: Literal["replicate"] = "replicate"
"""Every device has the whole tensor."""
PARTIAL: Literal["partial"] = "partial"
"""Every device has a summand of it."""
Placement = int | str
"""Where a tensor is: cut along a dimension, or one of these; of what a reference allows also `partial max` and others,
which PyTorch joins so."""

LEADING = "..."
Shape = Sequence[int]
Shapes = Mapping[str, Shape | None]


class Misfit(ValueError):
    """The tensors of a call are not such as a declaration describes, and why."""


class Rule(NamedTuple):
    """Where tensors must be for every device to run the operator on its own, and where its results are then."""

    dimension: str
    """What is cut, in a word: a name, or `...[0]` for the first of the leading ones."""
    inputs: dict[str, Placement]
    outputs: tuple[Placement, ...]


@dataclass(frozen=True)
class Sharding:
    """The dimensions along which an operator's tensors may be cut."""

    text: str
    """As its author wrote it."""
    inputs: Mapping[str, Pattern]
    outputs: tuple[Pattern, ...]
    """Of the outputs, then of the extra results."""
    over: tuple[str, ...]
    """The dimensions that may be cut, the leading ones among them as `...`."""
    sums: tuple[str, ...] = ()
    """Those that results without them are sums over."""
    once: tuple[str, ...] = ()
    """The tensors that enter such sums once: each device gets a summand of them."""
    group: str | None = None
    """The parameter that names the devices between which the operator communicates by itself."""
    ranks: str | None = None
    """That which says how many they are."""
    across: tuple[str, ...] = ()
    """The dimensions whose pieces it communicates between: they may be cut among those devices, and no others."""
    whole: tuple[int, ...] = ()
    """The results that every device has whole where they lack the dimension that is cut."""

    def communicates(self, rule: Rule) -> bool:
        """Whether the operator communicates between the pieces of a rule."""
        return rule.dimension.partition("[")[0] in self.across

    def rules(self, shapes: Shapes, results: Sequence[Shape | None] = ()) -> list[Rule]:
        """The rules for a call with tensors of these shapes; those of results where they are known. Misfit where they
        are not such as the patterns describe, of which nothing is said then."""
        here = {name: shape for name, shape in shapes.items() if shape is not None}
        named = {name: pattern for name, pattern in self.inputs.items() if name in here}
        self._refuse(named, here, results)
        leading = [_leading(pattern, here[name]) for name, pattern in named.items()]
        known = [_leading(p, r) for p, r in zip(self.outputs, results, strict=False) if r is not None]
        sizes = _broadcast([*leading, *known])
        found = []
        for name in self.over:
            if name == LEADING:
                found += [self._rule(name, here, sizes, back) for back in range(len(sizes), 0, -1)]
            elif any(_position(p, name) is not None for p in named.values()):
                found.append(self._rule(name, here, sizes))
        return found

    def _refuse(self, named: Mapping[str, Pattern], here: Mapping[str, Shape], results: Sequence[Shape | None]) -> None:
        outs = {f"result {i}": p for i, p in enumerate(self.outputs)}
        shapes = {**here, **dict(zip(outs, results, strict=False))}
        patterns = {n: p for n, p in {**named, **outs}.items() if shapes.get(n) is not None}
        why = misfit_of(patterns, {n: tuple(shapes[n] or ()) for n in patterns})
        if why is not None:
            raise Misfit(why)
        leading = {n: _leading(p, shapes[n] or ()) for n, p in patterns.items() if p.leading}
        whole = _broadcast(list(leading.values()))
        for name, sizes in leading.items():
            if any(n not in (1, of) for n, of in zip(reversed(sizes), reversed(whole), strict=False)):
                raise Misfit(f"the leading dimensions of {name}, {spell(sizes)}, do not broadcast with the others'")

    def _rule(self, name: str, here: Mapping[str, Shape], sizes: list[int], back: int = 0) -> Rule:
        """The rule for one dimension; of the leading ones, that which stands so many from their end."""
        inputs: dict[str, Placement] = {}
        for tensor, shape in here.items():
            pattern, place = self.inputs.get(tensor), None
            if pattern is not None:
                place = _position(pattern, name) if name != LEADING else None
                place = None if place is None else len(shape) - len(pattern.dimensions) + place
                own = _leading(pattern, shape)
                if name == LEADING and back <= len(own) and own[-back] == sizes[-back]:
                    place = len(own) - back
            inputs[tensor] = REPLICATE if place is None else place
        outputs: list[Placement] = []
        for index, pattern in enumerate(self.outputs):
            place = _position(pattern, name) if name != LEADING else None
            place = None if place is None else place + (len(sizes) if pattern.leading else 0)
            if name == LEADING and pattern.leading:
                place = len(sizes) - back
            lacking = REPLICATE if index in self.whole else PARTIAL
            outputs.append(lacking if place is None else place)
        if PARTIAL in outputs:
            inputs |= {tensor: PARTIAL for tensor in self.once if tensor in here}
        spelled = f"{name}[{len(sizes) - back}]" if name == LEADING else name
        return Rule(spelled, inputs, tuple(outputs))

    @cached_property
    def says(self) -> str:
        """What it cuts, in words.

        >>> read("f", "x[b, k] weight[n, k] -> [b, n]", sums="k").says
        'b, k (a sum), n'
        """
        return ", ".join(f"{name} (a sum)" if name in self.sums else name for name in self.over)


def _leading(pattern: Pattern, shape: Shape) -> list[int]:
    return list(shape[: len(shape) - len(pattern.dimensions)]) if pattern.leading else []


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The sizes of leading dimensions together."""
    rank = max(map(len, shapes), default=0)
    padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
    return [next((n for n in column if n != 1), 1) for column in zip(*padded, strict=True)]


def _position(pattern: Pattern, name: str) -> int | None:
    """The place of a dimension among those that a pattern names; None: it is not there, or in a product or a sum."""
    return next((i for i, d in enumerate(pattern.dimensions) if _is_plain(d) and d.names[0] == name), None)


def _is_plain(d: Dimension) -> bool:
    return len(d.names) == 1 and d.factor == 1


def elementwise(tensors: Iterable[str], outputs: int) -> Sharding:
    """The sharding of an operator that takes each element by itself: all dimensions, which broadcast."""
    every = Pattern((), True)
    return Sharding("elementwise", dict.fromkeys(tensors, every), (every,) * outputs, (LEADING,))


# --- reading what an author wrote ----------------------------------------------------------------------------------

_RESULT = re.compile(r"(\w*)\[([^\]]*)\]")


def read(
    op: str,
    text: str,
    *,
    over: Any = None,
    sums: Any = (),
    once: Any = (),
    group: Any = None,
    across: Any = None,
    whole: Any = (),
    signature: Signature | None = None,
    extras: Sequence[str] = (),
    domains: Sequence[Domain] = (),
) -> Sharding:
    """Read a declaration such as `x[..., k] weight[n, k] bias[n] -> [..., n]`; raise where it cannot be meant."""
    if not isinstance(text, str) or text.count("->") != 1:
        raise ValueError(f"{op}: shard takes patterns such as 'x[..., k] weight[n, k] -> [..., n]', got {text!r}")
    left, right = (side.strip() for side in text.split("->"))
    try:
        inputs = parse(left) if left else _from_domains(op, domains)
        outputs = _results(op, right, signature, extras)
    except ValueError as e:
        raise ValueError(str(e).replace("sizes:", f"{op}: shard:", 1)) from None
    given_sums, given_once = _names(op, "sums", sums), _names(op, "once", once)
    given_whole = _indices(op, _names(op, "whole", whole), len(outputs), signature, extras)
    patterns = [*inputs.values(), *outputs]
    there = list(dict.fromkeys(d.names[0] for p in inputs.values() for d in p.dimensions if _is_plain(d)))
    there += [LEADING] if any(p.leading for p in inputs.values()) else []
    if over is None:
        in_results = [n for n in there if any(_has(p, n) for p in outputs)]
        fit = [n for n in in_results if _unfit(n, inputs, outputs, given_sums, given_whole) is None]
        cut: tuple[str, ...] = tuple(dict.fromkeys((*fit, *given_sums)))
    else:
        cut = tuple(dict.fromkeys((*_names(op, "over", over), *given_sums)))
    name, ranks = (group, None) if group is None or isinstance(group, str) else (*group, None)[:2]
    between = _names(op, "across", across) if across is not None else cut if group is not None else ()
    made = Sharding(text, inputs, tuple(outputs), cut, given_sums, given_once, name, ranks, between, given_whole)
    _refuse_tensors(op, made, signature)
    _refuse_strange(op, made)
    for name in cut:
        word = "sums" if name in given_sums else "over"
        if name not in there:
            composed = any(name in d.names for p in patterns for d in p.dimensions)
            why = "stands in products and sums alone" if composed else "is in no input"
            raise ValueError(f"{op}: shard: {word} names the dimension {name!r}, which {why}; there are {_list(there)}")
        why_not = _unfit(name, inputs, outputs, given_sums, given_whole)
        if why_not is not None:
            raise ValueError(f"{op}: shard: {name!r} cannot be cut: {why_not}")
    for name in given_sums:
        if all(_has(p, name) for p in outputs):
            raise ValueError(f"{op}: shard: sums names {name!r}, which every result has: it is no sum over it")
    for tensor in given_once:
        has = next((n for n in given_sums if tensor in inputs and _has(inputs[tensor], n)), None)
        if has is not None:
            raise ValueError(f"{op}: shard: once names {tensor!r}, which has {has!r} itself and is cut along it")
    if given_once and not given_sums:
        raise ValueError(f"{op}: shard: once names {given_once[0]!r}, and no dimension is summed: say sums=…")
    for domain in domains:
        refuse_contradiction(op, made, domain)
    return made


def _indices(
    op: str, names: Sequence[str], count: int, signature: Signature | None, extras: Sequence[str]
) -> tuple[int, ...]:
    """The places of results that are named, or numbered where they have no names."""
    outputs = () if signature is None else signature.outputs
    known = [*(o.name or str(i) for i, o in enumerate(outputs)), *extras] or [str(i) for i in range(count)]
    strange = next((n for n in names if n not in known[:count]), None)
    if strange is not None:
        raise ValueError(f"{op}: shard: whole names the result {strange!r}; described are {_list(known[:count])}")
    return tuple(known.index(n) for n in names)


def _refuse_strange(op: str, made: Sharding) -> None:
    """Raise where a result has a dimension that nobody else has, and where nobody communicates across one."""
    known = {n for p in made.inputs.values() for d in p.dimensions for n in d.names}
    for i, pattern in enumerate(made.outputs):
        strange = next((n for d in pattern.dimensions for n in d.names if n not in known), None)
        if strange is not None:
            raise ValueError(
                f"{op}: shard: result {i}[{pattern}] has the dimension {strange!r}, which no input has; write _ for a "
                f"size of its own"
            )
        if pattern.leading and not any(p.leading for p in made.inputs.values()):
            raise ValueError(f"{op}: shard: result {i}[{pattern}] has leading dimensions, which no input has")
    if made.across and made.group is None:
        raise ValueError(f"{op}: shard: across names {made.across[0]!r}, and no group communicates: say group=…")
    missing = next((n for n in made.across if n not in made.over), None)
    if missing is not None:
        raise ValueError(f"{op}: shard: across names {missing!r}, which is not cut; cut are {_list(made.over)}")


def _names(op: str, word: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        given = re.split(r"[\s,]+", given.strip()) if given.strip() else ()
    names = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{op}: shard: {word} must be names, such as {word}='k', got {given!r}")
    return names


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _from_domains(op: str, domains: Sequence[Domain]) -> dict[str, Pattern]:
    found = next((dict(d.patterns) for d in domains if d.patterns), None)
    if found is None:
        raise ValueError(
            f"{op}: shard: no kernel's domain has sizes to take the inputs' patterns from; write them, "
            f"x[..., k] weight[n, k] -> [..., n]"
        )
    return found


def _results(op: str, text: str, signature: Signature | None, extras: Sequence[str]) -> list[Pattern]:
    """The patterns of the results in their order, by name where they have names."""
    found = _RESULT.findall(text)
    left = _RESULT.sub("", text).replace(",", "").strip()
    if left or not found:
        raise ValueError(f"{op}: shard: cannot read {left or text!r} after ->; write for example -> [..., n]")
    read = [next(iter(parse(f"x[{inner}]").values())) for _, inner in found]
    if signature is None:
        return read
    known = [o.name or str(i) for i, o in enumerate(signature.outputs)] + list(extras)
    names = [name for name, _ in found]
    if any(names) and signature.container is None and len(signature.outputs) > 1:
        raise ValueError(f"{op}: shard: its results have no names; write their patterns in order, got {text!r}")
    if len(known) > 1 and all(names):
        strange = next((n for n in names if n not in known), None)
        if strange is not None:
            hint = words.near(strange, known)
            raise ValueError(f"{op}: shard: it has no result {strange!r}{hint}; its results are {', '.join(known)}")
        read = [p for _, p in sorted(zip(names, read, strict=True), key=lambda pair: known.index(pair[0]))]
        known = [n for n in known if n in names] if set(known) - set(names) <= set(extras) else known
    if len(read) not in (len(signature.outputs), len(known)):
        raise ValueError(f"{op}: shard: {len(read)} results are described, and it has {', '.join(known)}")
    return read


def _has(pattern: Pattern, name: str) -> bool:
    return pattern.leading if name == LEADING else _position(pattern, name) is not None


def _unfit(
    name: str, inputs: Mapping[str, Pattern], outputs: Sequence[Pattern], sums: Sequence[str], whole: Sequence[int]
) -> str | None:
    """Why a dimension cannot be cut as it is declared; None: it can."""
    if name == LEADING:
        lacks = not all(p.leading or i in whole for i, p in enumerate(outputs)) and name not in sums
        return "a result has no leading dimensions, and is not said to be a sum over them" if lacks else None
    labelled = [*inputs.items(), *((f"result {i}", p) for i, p in enumerate(outputs))]
    for tensor, pattern in labelled:
        mentions = [d for d in pattern.dimensions if name in d.names]
        if any(not _is_plain(d) for d in mentions):
            composed = next(d.text for d in mentions if not _is_plain(d))
            return f"{tensor} has it as {composed}, and a piece of that is none of it"
        if len(mentions) > 1:
            return f"{tensor} has it twice, and would have to be cut along both"
    for i, pattern in enumerate(outputs):
        if name not in sums and i not in whole and _position(pattern, name) is None:
            return f"result {i} lacks it, and is not said to be a sum over it (sums={name!r}), nor whole everywhere"
    return None


def _refuse_tensors(op: str, made: Sharding, signature: Signature | None) -> None:
    if signature is None:
        return
    known = [p.name for p in signature.parameters if p.kind.is_tensor]
    for word, names in (("shard", made.inputs), ("shard: once", made.once)):
        for name in names:
            if name not in known:
                hint = words.near(name, known)
                raise TypeError(f"{op}: {word} names {name!r}; the tensors of {op} are {', '.join(known)}{hint}")
            if signature.names[name].kind.is_list:
                raise TypeError(f"{op}: {word} names {name!r}, which is a list of tensors; only single ones are cut")
    lists = [p.name for p in signature.parameters if p.kind.is_tensor and p.kind.is_list]
    lists += [f"result {o.name or i}" for i, o in enumerate(signature.outputs) if o.kind.is_list]
    if lists:
        raise TypeError(
            f"{op}: shard: {lists[0]} is a list of tensors, of which there are no rules; its reference runs"
        )
    strange = next((n for n in (made.group, made.ranks) if n is not None and n not in signature.names), None)
    if strange is not None:
        raise TypeError(f"{op}: shard: group names {strange!r}, which is no parameter of {op}")


def refuse_contradiction(op: str, sharding: Sharding, domain: Domain) -> None:
    """Raise where a kernel's domain says of a dimension that is cut what cannot be true of its pieces."""
    for name in sharding.over:
        mine = {t: _position(p, name) for t, p in sharding.inputs.items()}
        theirs = {t: domain.patterns[t] for t in mine if t in domain.patterns}
        for tensor, pattern in theirs.items():
            own = sharding.inputs[tensor]
            if len(pattern.dimensions) != len(own.dimensions) and not (pattern.leading or own.leading):
                raise ValueError(
                    f"{op}: shard: {tensor}[{own}] has {len(own.dimensions)} dimensions, and its domain has "
                    f"{tensor}[{pattern}]"
                )
        if name == LEADING:
            continue
        for tensor, place in mine.items():
            if tensor not in theirs or place is None:
                continue
            back = len(sharding.inputs[tensor].dimensions) - place
            if back > len(theirs[tensor].dimensions):
                continue  # among the leading ones
            dimension = theirs[tensor].dimensions[-back]
            said = f"and the domain of a kernel has {tensor}[{theirs[tensor]}]"
            if dimension.size is not None or len(dimension.names) > 1 or dimension.factor != 1:
                raise ValueError(f"{op}: shard: {name!r} of {tensor} is to be cut, {said}, whose pieces do not fit it")
            for other, pattern in theirs.items():
                for at, d in enumerate(pattern.dimensions):
                    same = bool(dimension.names) and dimension.names[0] in d.names
                    place_of = len(sharding.inputs[other].dimensions) - (len(pattern.dimensions) - at)
                    if same and mine[other] != place_of:
                        raise ValueError(
                            f"{op}: shard: {name!r} of {tensor} is to be cut, {said} and {other}[{pattern}]: "
                            f"{d.text} of {other} must be cut with it"
                        )
