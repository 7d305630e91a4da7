"""Finds convolutions with a batch norm behind them in a model, and lets one operator compute each such chain."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every

from opwright.nn.chains import rewrite, setting
from opwright.nn.conv_bn import KEEPS, NORMS, ConvBN2d, Keep, hooked
from opwright.nn.traced import Refused, Traced, kinds, trace

MOST_PLANS = 16
"""How often a forward is traced again before it is left alone."""


@dataclass(frozen=True)
class Fusion:
    """What became one operator, and what did not, and why: by the names of the convolutions or of their parents.

    >>> import torch, opwright as ow
    >>> ow.nn.fuse_conv_bn(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1))).conv_bn_fusion
    Fusion(fused=[], left={})
    """

    fused: list[str]
    left: dict[str, str]


def fuse_conv_bn(model: nn.Module, *, keep: Keep = "input") -> nn.Module:
    """Let one operator compute each chain of Conv2d, BatchNorm2d, addition and activation in a model.

    Each module's own forward is traced, its children as they are. Where the trace shows that nobody else uses what lies
    between, the forward that is called afterwards computes the chain by `ow.conv_bn`. Parameters, buffers and the names
    of the state_dict stay. Modules that are shared, have hooks or are parametrized are left alone; so is a forward of
    which a trace does not tell all, such as one that depends on `self.training`, sets attributes or draws numbers.
    `model.conv_bn_fusion` lists both. What changes later (a hook, another module in its place, an attribute that the
    forward reads) is noticed. The model itself is changed, and returned.

    Args:
        keep: what gradients are computed from, as for `ow.nn.ConvBN2d`

    >>> import torch, opwright as ow
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    >>> ow.nn.fuse_conv_bn(model).conv_bn_fusion
    Fusion(fused=['0'], left={})
    """
    if keep not in KEEPS:
        raise ValueError(f"fuse_conv_bn: keep must be one of {', '.join(KEEPS)}, got {keep!r}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"fuse_conv_bn: model must be a torch.nn.Module, got {type(model).__name__}")
    uses = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    found: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, module in list(model.named_modules()):
        computes = not (isinstance(module, ConvBN2d) or _holds_only(module))
        if computes and any(isinstance(c, nn.Conv2d) for c in _called(module)):
            Forward(module, keep).install(name, uses, found, left)
    object.__setattr__(model, "conv_bn_fusion", Fusion(list(found), left))
    return model


@dataclass(frozen=True)
class Plan:
    """A forward whose chains are fused, and what it depends on."""

    run: Callable[..., Any]
    traced: Traced
    parts: list[tuple[nn.Module, type, Any]]
    """The modules that are not called any more, each with its class, which a parametrization changes, and with the
    setting that is a constant of the chain."""
    owners: list[tuple[nn.Module, dict[str, Any]]]
    """The modules in which those were found, with their children."""

    def holds(self, module: nn.Module) -> bool:
        """Whether everything is still as it was."""
        for part, kind, then in self.parts:
            if type(part) is not kind or hooked(part) or (then is not None and setting(part) != then):
                return False
        for owner, children in self.owners:
            now = owner._modules
            if len(now) != len(children):
                return False
            for name, child in children.items():
                if now.get(name) is not child:
                    return False
        return self.traced.holds(module)


class Forward:
    """The forward of a module whose chains are fused. A copy of it, from a file too, traces its own module anew."""

    def __init__(self, module: nn.Module, keep: Keep) -> None:
        self.module, self.keep = module, keep
        self.names: list[str] = []
        self.plans: dict[Any, Plan | None] = {}
        self.built = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        kind = kinds(args, kwargs)
        if every._global_forward_hooks or every._global_forward_pre_hooks or every._global_backward_hooks:
            plan = None  # which are to see every module
        elif kind not in self.plans:
            plan = self._again(kind, args, kwargs)
        else:
            plan = self.plans[kind]
            if plan is not None and not plan.holds(module):
                plan = self._again(kind, args, kwargs)
        if plan is None:
            return type(module).forward(module, *args, **kwargs)
        return plan.run(module, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What a function is asked for."""
        if name not in _OF_FUNCTIONS:
            raise AttributeError(name)
        forward = type(self.module).forward
        return inspect.signature(forward.__get__(self.module)) if name == "__signature__" else getattr(forward, name)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"plans": {}, "built": 0}

    def install(self, name: str, uses: Counter[int], found: dict[str, str], left: dict[str, str]) -> None:
        """Become the module's forward, if there is anything to fuse."""
        own = self.module.__dict__.get("forward")
        if isinstance(own, Forward):  # which may keep something else
            object.__delattr__(self.module, "forward")
            own = None
        said: dict[str, str] = {}
        if own is None:
            self.names, plan = self._build(None, {}, uses, said)
            self.plans[_usual(self.module)] = plan
        elif any(isinstance(c, NORMS) for c in _called(self.module)):
            said[""] = "its forward was set for this module alone"
        prefix = f"{name}." if name else ""
        left.update({prefix + n if n else name: why for n, why in said.items()})
        if self.names:
            found.update({prefix + n: prefix for n in self.names})
            object.__setattr__(self.module, "forward", self)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _again(self, kind: Any, args: Any, kwargs: Any) -> Plan | None:
        """The plan for a call of a kind that was not there before, or where something has changed."""
        self.built += 1
        plan = None
        if self.built <= MOST_PLANS:
            _, plan = self._build(args, kwargs, Counter(), {})
        elif self.built == MOST_PLANS + 1:
            warnings.warn(
                f"fuse_conv_bn: {type(self.module).__name__} is called without fused chains from now on, since what "
                f"its forward reads has changed {MOST_PLANS} times: an attribute or a number that is another each time",
                stacklevel=3,
            )
        self.plans[kind] = plan
        return plan

    def _build(
        self, args: Any, kwargs: dict[str, Any], uses: Counter[int], left: dict[str, str]
    ) -> tuple[list[str], Plan | None]:
        """The names of the convolutions that are fused, and how."""
        module = self.module
        has_norm = any(isinstance(c, NORMS) for c in _called(module))
        own = module.__dict__.pop("forward", None)
        try:
            traced = trace(module, args, kwargs)
        except Exception as e:
            if has_norm:
                left[""] = str(e) if isinstance(e, Refused) else f"its forward cannot be traced: {e}"
            return [], None
        finally:
            if own is not None:
                object.__setattr__(module, "forward", own)
        graph = traced.graph
        names, targets = rewrite(module, graph, self.keep, self.names, uses, left)
        if not names:
            return [], None
        code = graph.python_code("self")
        scope = dict(code.globals)
        exec(compile(code.src, f"<fused forward of {type(module).__name__}>", "exec"), scope)
        parts = [(part, type(part), setting(part)) for part in map(module.get_submodule, targets)]
        owners = {id(o): o for target in targets for o in _owners(module, target)}.values()
        return names, Plan(scope["forward"], traced, parts, [(o, dict(o._modules)) for o in owners])


_OF_FUNCTIONS = (
    "__code__",
    "__defaults__",
    "__globals__",
    "__kwdefaults__",
    "__name__",
    "__qualname__",
    "__signature__",
)


def _holds_only(module: nn.Module) -> bool:
    """Whether a module has others, and nothing to compute with them."""
    return type(module).forward is nn.Module.forward


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that a forward calls itself: its children, and those of what only holds them."""
    for child in module.children():
        if _holds_only(child):
            yield from _called(child)
        else:
            yield child


def _usual(module: nn.Module) -> Any:
    """The kind of call that a module is traced for before there is one."""
    parameters = [*inspect.signature(type(module).forward).parameters.values()][1:]
    count = sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    named = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    return (Tensor,) * count, tuple((name, Tensor) for name in named)


def _owners(module: nn.Module, target: str) -> list[nn.Module]:
    """The modules on the way to one."""
    *path, _ = target.split(".")
    found = [module]
    for name in path:
        found.append(found[-1].get_submodule(name))
    return found
