"""Compiled graphs and the operators in them.

PyTorch keeps compiled graphs on disk under a key that knows an operator by its name alone. Neither what its fake kernel
promises nor what its gradient takes is in it, so that a graph could meet another operator of the same name: another
script's, or the same one edited. Here each operator that a compiler meets adds what it is to that key.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit.captured import digest
from opwright.version import __version__

if TYPE_CHECKING:
    from opwright.kit.op import Op

_met: dict[str, str] = {}
_tag = ""


def definition(op: Op[..., Any]) -> tuple[Any, ...]:
    """All that an operator's author said about what it computes."""
    extras = op._extras
    saving = None if op.saving_form is None else inspect.unwrap(op.saving_form.reference)
    flags = [(p.mutated, p.differentiable) for p in op.signature.parameters]
    outputs = [o.differentiable for o in op.signature.outputs]
    extra = None if extras is None else (extras.names, extras.once)
    return (
        (__version__, op.schema, op.random, op.compile, op.autocast, flags, outputs, extra),
        (inspect.unwrap(op.reference), op._gradient, op._needs, op.surrogate, saving, op._fake),
    )


def stamp(op: Op[..., Any], names: str) -> None:
    """Put what an operator is into the key of graphs compiled from now on; `names`: those it has in this process."""
    home = op.home
    spelled = f"{home.digest} {names}"
    if _met.get(home.qualname) != spelled:
        _met[home.qualname] = spelled
        _write()


def forget(op: Op[..., Any]) -> None:
    """The operator is about to be another: what was compiled with it in this process must be compiled again."""
    if op.qualname in _met and "torch._dynamo" in sys.modules:
        del _met[op.qualname]
        torch.compiler.reset()


def _write() -> None:
    global _tag
    config = torch.compiler.config
    others = config.cache_key_tag.removesuffix(_tag)  # somebody else's share of it
    _tag = f" opwright {digest(_met)}"
    config.cache_key_tag = others + _tag
