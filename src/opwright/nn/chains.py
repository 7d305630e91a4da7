"""Finds convolutions with a batch norm behind them in the graph of a forward, and puts one call in their place."""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from opwright.nn.conv_bn import NORMS, PLAIN, Keep, fused, hooked, output_dtype, output_shape

_OF_MODULE: dict[type, str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.ELU: "elu",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
}
_SETTINGS: dict[type, str] = {nn.LeakyReLU: "negative_slope", nn.ELU: "alpha", nn.GELU: "approximate"}
_OF_FUNCTION: dict[Any, tuple[str, float]] = {
    F.relu: ("relu", 0.0),
    torch.relu: ("relu", 0.0),
    torch.relu_: ("relu", 0.0),
    F.leaky_relu: ("leaky_relu", 0.01),
    F.elu: ("elu", 1.0),
    F.silu: ("silu", 0.0),
    F.gelu: ("gelu", 0.0),
}
_VIEWS = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout2d)
_VIEWING = frozenset((
    "as_strided", "broadcast_to", "chunk", "contiguous", "detach", "diagonal", "dropout", "dropout2d", "dsplit",
    "expand", "expand_as", "flatten", "getattr", "getitem", "hsplit", "movedim", "moveaxis", "narrow", "permute",
    "positive", "ravel", "reshape", "reshape_as", "select", "split", "squeeze", "swapaxes", "swapdims", "t",
    "tensor_split", "to", "transpose", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
    "vsplit"
))  # fmt: skip
"""Functions and methods whose result may lie in the memory of what they are given."""


_IN_PLACE = (operator.iadd, "add_")


class _Chain(NamedTuple):
    conv: Any
    bn: Any
    add: Any
    residual: Any
    act: Any
    activation: str
    slope: float

    @property
    def nodes(self) -> list[Any]:
        return [n for n in (self.conv, self.bn, self.add, self.act) if n is not None]


def rewrite(
    module: nn.Module, graph: Any, keep: Keep, only: list[str], uses: Counter[int], left: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Fuse the chains of a graph; the names of their convolutions, and of all modules that are not called any more."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    names: list[str] = []
    targets: list[str] = []
    for node in list(graph.nodes):
        bn = _module(module, node)
        if not isinstance(bn, (*NORMS, nn.LazyBatchNorm2d)) or not node.args:
            continue
        conv = _module(module, node.args[0])
        if not isinstance(conv, nn.Conv2d) or (only and node.args[0].target not in only):
            continue
        if any(len(n.args) != 1 or n.kwargs for n in (node, node.args[0])):
            left[node.args[0].target] = "it is called by keyword"
            continue
        if not isinstance(node.args[0].args[0], fx.Node):
            left[node.args[0].target] = "what it is given is no tensor"
            continue
        why = next(filter(None, (_refuses(m, n, calls, uses) for m, n in ((conv, node.args[0]), (bn, node)))), None)
        if why is None and len(node.args[0].users) > 1:
            why = "its output has another use"
        if why is None and not _still(module, graph, node.args[0], node, []):
            why = "something is written between it and its batch norm"
        if why is None and _written(module, node.args[0].args[0], node):
            why = "what it reads is written"  # and is read again by the gradient
        if why is not None:
            left[node.args[0].target] = why
            continue
        names.append(node.args[0].target)
        chain = _chain(module, graph, node, calls, uses)
        targets += [n.target for n in chain.nodes if n.op == "call_module"]
        last = chain.nodes[-1]
        _replace(graph, chain, "input" if keep == "output" and _written(module, last, last) else keep)
    graph.lint()
    return names, targets


def setting(part: nn.Module) -> Any:
    """What an activation is told, if anything: a fused chain has it as a constant."""
    name = _SETTINGS.get(type(part))
    return None if name is None else getattr(part, name)


def _module(owner: nn.Module, node: Any) -> nn.Module | None:
    if getattr(node, "op", None) != "call_module":
        return None
    return owner.get_submodule(node.target)


def _refuses(module: nn.Module, node: Any, calls: Counter[Any], uses: Counter[int]) -> str | None:
    """Why a module must be called as it is."""
    if parametrize.is_parametrized(module):
        return f"{node.target} is parametrized"
    if type(module) not in (nn.Conv2d, *NORMS, *_OF_MODULE):
        return f"{node.target} is a {type(module).__name__}"
    if hooked(module):
        return f"{node.target} has hooks, or a forward of its own"
    if type(module) not in _OF_MODULE and (calls[node.target] > 1 or uses[id(module)] > 1):
        return f"{node.target} is shared"
    return None


def _chain(module: nn.Module, graph: Any, bn: Any, calls: Counter[Any], uses: Counter[int]) -> _Chain:
    """The longest chain behind a batch norm that can move to where it ends."""
    chain = _Chain(bn.args[0], bn, None, None, None, "none", 0.0)
    last = _next(bn)
    residual = None if last is None else _added(last, bn)
    if last is not None and residual is not None and _still(module, graph, chain.conv, last, [*chain.nodes]):
        chain = chain._replace(add=last, residual=residual)
        last = _next(last)
    if last is None or (_module(module, last) is None and last.op not in ("call_function", "call_method")):
        return chain
    read = _activation(module, last, calls, uses)
    if read is None or not _still(module, graph, chain.conv, last, chain.nodes):
        return chain
    # Its gradient reads what was added, where PyTorch's reads what it took: that nobody may write to.
    added = chain.residual
    if read[0] != "relu" and added is not None and _written(module, added, last):
        return chain
    return chain._replace(act=last, activation=read[0], slope=read[1])


def _written(module: nn.Module, node: Any, after: Any) -> bool:
    """Whether anybody writes to a node's result after another, to it or to a view of the same memory."""
    first = node
    while (behind := _same_memory(module, first)) is not None:
        first = behind
    found = [first]
    for each in found:
        for user in each.users:
            if after < user and any(to is each for to in _writes(module, user)):
                return True
            if user not in found and _same_memory(module, user) is each:
                found.append(user)
    return False


def _same_memory(module: nn.Module, node: Any) -> Any:
    """The node whose result another one's may be a view of, or is after it was written to."""
    written = _writes(module, node)
    if written:
        return written[0]
    first = next((a for a in node.args if isinstance(a, fx.Node)), None)
    inside = _module(module, node)
    if inside is not None:
        return first if isinstance(inside, _VIEWS) else None
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return first if name in _VIEWING else None


def _next(node: Any) -> Any:
    """Who alone uses a node."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _added(node: Any, bn: Any) -> Any:
    """What is added to a batch norm's result."""
    functions = (operator.add, operator.iadd, torch.add)
    is_add = node.op == "call_function" and node.target in functions
    if not (is_add or (node.op == "call_method" and node.target in ("add", "add_"))) or node.kwargs:
        return None
    if len(node.args) != 2 or (node.target in _IN_PLACE and node.args[0] is not bn):
        return None
    other = node.args[1] if node.args[0] is bn else node.args[0]
    return other if hasattr(other, "op") and other is not bn else None


def _activation(module: nn.Module, node: Any, calls: Counter[Any], uses: Counter[int]) -> tuple[str, float] | None:
    found = _module(module, node)
    if found is not None:
        if type(found) not in _OF_MODULE or _refuses(found, node, calls, uses) is not None or node.kwargs:
            return None
        name, value = _OF_MODULE[type(found)], setting(found)
        if name == "gelu":
            return (name, 0.0) if value == "none" else None
        return name, 0.0 if value is None else float(value)
    if node.op == "call_method" and node.target in ("relu", "relu_"):
        return "relu", 0.0
    if node.op != "call_function" or node.target not in _OF_FUNCTION:
        return None
    name, slope = _OF_FUNCTION[node.target]
    given = {k: v for k, v in node.kwargs.items() if k not in ("inplace", "input")}
    if name in ("leaky_relu", "elu"):
        word = "negative_slope" if name == "leaky_relu" else "alpha"
        value = given.pop(word, node.args[1] if len(node.args) > 1 else slope)
        return (name, float(value)) if not given and isinstance(value, (int, float)) else None
    return (name, 0.0) if not given and (name == "relu" or len(node.args) == 1) else None


def _still(module: nn.Module, graph: Any, first: Any, last: Any, chain: list[Any]) -> bool:
    """Whether nothing between two nodes, a chain aside, may write to what the first reads."""
    between = False
    for node in graph.nodes:
        if node is last:
            return True
        if between and node not in chain and _writes(module, node):
            return False
        between = between or node is first
    return False


def _writes(module: nn.Module, node: Any) -> list[Any]:
    """What a node writes to."""
    first = [*node.args, *node.kwargs.values()][:1]
    inside = _module(module, node)
    if inside is not None:
        return first if any(getattr(m, "inplace", False) for m in inside.modules()) else []
    if node.op == "call_method":
        return first if node.target.endswith("_") and not node.target.endswith("__") else []
    if node.op != "call_function":
        return []
    try:
        given: Any = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):  # one of PyTorch's in C++
        given = node.kwargs
    out = given.get("out")
    if out is not None:
        return list(out) if isinstance(out, (list, tuple)) else [out]
    name = getattr(node.target, "__name__", "")
    own = name.endswith("_") or (getattr(operator, name, None) is node.target and name.startswith("i"))
    return first if own or given.get("inplace") else []


def _replace(graph: Any, chain: _Chain, keep: Keep) -> None:
    last = chain.nodes[-1]
    with graph.inserting_before(last):
        conv, bn = (graph.create_node("get_attr", n.target) for n in (chain.conv, chain.bn))
        in_place = chain.add is not None and chain.add.target in _IN_PLACE
        given = (conv, bn, chain.conv.args[0], chain.residual, chain.activation, chain.slope, keep, in_place)
        node = graph.call_function(run_chain, given)
    last.replace_all_uses_with(node)
    for old in reversed(chain.nodes):
        graph.erase_node(old)


def run_chain(
    conv: nn.Conv2d,
    bn: nn.BatchNorm2d,
    x: Tensor,
    residual: Any,
    activation: str,
    slope: float,
    keep: Keep,
    in_place: bool,
) -> Tensor:
    """A fused chain. What is added may be a number, broadcast, or of another dtype: that is for PyTorch."""
    if residual is None or (
        isinstance(residual, Tensor) and residual.shape == output_shape(conv, x) and residual.dtype == output_dtype(x)
    ):
        return fused(conv, bn, x, residual, activation, slope, keep)
    z = fused(conv, bn, x, None, "none", 0.0, keep)
    added = z + residual
    return PLAIN[activation](added.to(z.dtype) if in_place else added, slope)
