"""Compiled graphs and the operators in them.

PyTorch keeps compiled graphs on disk under a key that knows an operator by its name alone. Neither what its fake kernel
promises nor what its gradient takes is in it, so that a graph could meet another operator of the same name: another
script's, or the same one edited. Here each operator that a compiler meets adds what it is to that key.
"""

from __future__ import annotations

import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import private
from opwright.kit.spec.captured import digest
from opwright.version import __version__

if TYPE_CHECKING:
    from opwright.kit.op import Op
    from opwright.kit.spec.operator import Formula

_met: dict[str, str] = {}
_tag = ""
_traced: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()
"""What operators were found to be while something is compiled, during which they stay the same."""


def definition(op: Op[..., Any]) -> tuple[Any, ...]:
    """All that an operator's author said about what it computes."""
    extras = op.spec.extras
    flags = [(p.mutated, p.differentiable) for p in op.signature.parameters]
    outputs = [o.differentiable for o in op.signature.outputs]
    tags = [op.spec.vmap, *(tag.name for tag in op.spec.tags)]
    extra = None if extras is None else (extras.names, extras.once, extras.function)
    declared = [(each.name, each.spec.fake, *_said(each.spec.formula)) for each in op.ladder]
    return (
        (__version__, op.schema, op.random, op.compile, op.autocast, tags, flags, outputs),
        (op.reference if op.functional is None else op.functional, extra),
        [said for said in declared if said[1:] != (None,)],
    )


def _said(formula: Formula | None) -> tuple[Any, ...]:
    return () if formula is None else (formula.function, formula.needs, formula.surrogate, formula.when)


def stamp(op: Op[..., Any], names: str) -> None:
    """Put what an operator is into the key of graphs compiled from now on; `names`: those it has in this process."""
    home = op.home
    spelled = f"{_digest(home)} {names}"
    if _met.get(home.qualname) != spelled or _tag not in torch.compiler.config.cache_key_tag:
        _met[home.qualname] = spelled
        _write()


def _digest(home: Op[..., Any]) -> str:
    context = private.tracing_context()
    if context is None:
        return home.digest
    known = _traced.setdefault(context, weakref.WeakKeyDictionary())
    if home not in known:
        known[home] = home.digest
    return known[home]


def forget(op: Op[..., Any]) -> None:
    """The operator is about to be another: what was compiled with it in this process must be compiled again."""
    if op.qualname in _met and "torch._dynamo" in sys.modules:
        del _met[op.qualname]
        torch.compiler.reset()


def _write() -> None:
    global _tag
    config = torch.compiler.config
    others = re.sub(r" opwright [0-9a-f]{16}\b", "", config.cache_key_tag)  # somebody else's share of it
    _tag = f" opwright {digest(sorted(_met.items()))}"
    config.cache_key_tag = others + _tag
