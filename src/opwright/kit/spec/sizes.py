"""Patterns of sizes, such as `x[..., k] weight[n, k%8]`: read once, when a domain is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from opwright.kit.spec.require import spell

TENSOR = re.compile(r"(\w+)\[([^\]]*)\]")
DIMENSION = re.compile(
    r"(?P<size>\d+)"
    r"|(?:(?:(?P<factor>[1-9]\d*)\*)?(?P<name>[A-Za-z]\w*)|_)(?:%(?P<divisor>[1-9]\d*))?"
    r"|(?P<first>[A-Za-z]\w*)\+(?P<second>[A-Za-z]\w*)"
)


class Dimension(NamedTuple):
    """One dimension of a pattern: a size; `factor` times a name; a sum of two names; or, with no name, anything."""

    text: str
    size: int | None = None
    names: tuple[str, ...] = ()
    factor: int = 1
    divisor: int = 1

    def takes(self, size: int, bound: dict[str, int]) -> bool:
        """Whether it can be this size where names are bound as they are; binds its name. Sums come later."""
        if self.size is not None:
            return size == self.size
        if size % self.divisor or size % self.factor:
            return False
        whole = size // self.factor
        return len(self.names) != 1 or bound.setdefault(self.names[0], whole) == whole


class Pattern(NamedTuple):
    """The shape of one tensor: its last dimensions, and whether any others may lead them."""

    dimensions: tuple[Dimension, ...]
    leading: bool

    def __str__(self) -> str:
        return ", ".join(["..."] * self.leading + [d.text for d in self.dimensions])

    def align(self, shape: tuple[int, ...]) -> list[tuple[Dimension, int]] | None:
        """Each of its dimensions with its size in a shape; None where their numbers differ."""
        extra = len(shape) - len(self.dimensions)
        if extra < 0 or (extra and not self.leading):
            return None
        return list(zip(self.dimensions, shape[extra:], strict=True))


def parse(sizes: str) -> dict[str, Pattern]:
    """The pattern of each tensor that `sizes` names; ValueError where it cannot be read."""
    rest = re.sub(r"\s+", " ", sizes.replace(";", " ")).strip()
    patterns: dict[str, Pattern] = {}
    for match in TENSOR.finditer(rest):
        if match[1] in patterns:
            raise ValueError(f"sizes: {match[1]} has two patterns, {match[1]}[{patterns[match[1]]}] and {match[0]}")
        patterns[match[1]] = _pattern(match)
    left = TENSOR.sub("", rest).replace(",", "").strip()
    if left:
        raise ValueError(f"sizes: cannot read {left!r}; write for example x[..., k] weight[n, k]")
    return patterns


def _pattern(tensor: re.Match[str]) -> Pattern:
    texts = [text.strip() for text in tensor[2].split(",") if text.strip()]
    leading = texts[:1] == ["..."]
    found = [DIMENSION.fullmatch(text) for text in texts[leading:]]
    if None in found:
        raise ValueError(
            f"sizes: cannot read {tensor[0]!r}; write for example x[..., k], weight[n, k%8], h[3*k, _] or y[k+n, 4]"
        )
    return Pattern(tuple(_dimension(match) for match in found if match), leading)


def _dimension(match: re.Match[str]) -> Dimension:
    size = None if match["size"] is None else int(match["size"])
    names = tuple(name for name in match.group("name", "first", "second") if name is not None)
    return Dimension(match[0], size, names, int(match["factor"] or 1), int(match["divisor"] or 1))


def misfit(patterns: Mapping[str, Pattern], arguments: Mapping[str, Any]) -> str | None:
    """Why these arguments do not fit; None when they do."""
    given = {name: arguments.get(name) for name in patterns}
    return misfit_of(patterns, {name: t.shape for name, t in given.items() if isinstance(t, Tensor)})


def misfit_of(patterns: Mapping[str, Pattern], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why tensors of these shapes do not fit; None when they do."""
    bound: dict[str, int] = {}
    sums: list[tuple[str, Dimension, int]] = []  # for when all else is known
    for name, pattern in patterns.items():
        if name not in shapes:
            continue
        known = dict(bound)
        sizes = pattern.align(shapes[name])
        if sizes is None or not all(dimension.takes(size, bound) for dimension, size in sizes):
            mentioned = [name for dimension in pattern.dimensions for name in dimension.names]
            using = _using(known, [k for k in known if k in mentioned])
            return f"{name} has shape {spell(shapes[name])}, which does not fit {name}[{pattern}]{using}"
        sums += [(name, dimension, size) for dimension, size in sizes if len(dimension.names) > 1]
    for name, dimension, size in sums:
        given = [n for n in dimension.names if n in bound]
        if len(given) < 2 or sum(bound[n] for n in given) != size:
            using = _using(bound, given)
            return f"{name} has size {size} where {name}[{patterns[name]}] asks for {dimension.text}{using}"
    return None


def _using(bound: Mapping[str, int], names: list[str]) -> str:
    return " with " * bool(names) + ", ".join(f"{name} = {bound[name]}" for name in names)
