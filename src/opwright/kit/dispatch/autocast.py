"""What autocast does to an operator: what it does to the reference, or the casts that the author declares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.dispatch import native, registry
from opwright.kit.spec import words
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op


def read_casts(name: str, known: dict[str, Any], casts: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The tensors to be cast, as they were named; None: what autocast does to the reference."""
    if casts is None:
        return None
    tensors = [n for n, p in known.items() if p.kind.is_tensor]
    read = (casts,) if isinstance(casts, str) else words.several(name, "autocast", casts, "names")
    for argument in read:
        if argument not in tensors:
            raise TypeError(
                f"{name}: autocast names {argument!r}, which is not a tensor of {name}; those are {', '.join(tensors)}"
            )
    return read


def device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of device for whose tensors among these autocast is on; None where it is on for none."""
    there = {t.device.type for v in (*args, *kwargs.values()) for t in tensors(v)}
    kinds = [(kind, _name(kind)) for kind in registry.AUTOCAST.values()]
    return next((kind for kind, name in kinds if name in there and torch.is_autocast_enabled(name)), None)


def run(op: Op[..., Any], device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the dispatcher calls at the autocast key of a kind of device."""
    casts = op.home.autocast
    if casts is None:
        return op.run_transformed(*args, **kwargs)
    # The gradient's arguments are what the forward made of its own: cast already, or not to be.
    names = () if op.is_gradient else casts
    dtype = torch.get_autocast_dtype(_name(device))
    values = op.signature.bind(args, kwargs)
    # What keeps casts knows nothing of a transform's layers.
    keeps = native.available() is None and not private.transforms()
    for name in names:
        values[name] = _cast(values[name], device, dtype, keeps)
    positional, named = op.signature.encode(values)
    # Only the devices' own keys are taken out: what the operator calls is cast as it says, not once more.
    with private.ExcludeDispatchKeyGuard(_KEYS):
        return op.overload(*positional, **named)


def _name(device: str) -> str:
    name: str = private.privateuse1_name() if device == "privateuseone" else device
    return name


def _cast(value: Any, device: str, dtype: torch.dtype, keeps: bool) -> Any:
    """As PyTorch's own operators are cast: floating-point tensors of the device, double excepted. The cast of a
    parameter is made once and kept until the outermost autocast ends, where the package's own C++ reaches what keeps
    it."""
    if isinstance(value, (list, tuple)):
        return [_cast(v, device, dtype, keeps) for v in value]
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == torch.float64:
        return value
    if value.device.type != _name(device):
        return value
    if keeps:
        cast: Tensor = torch.ops.opwright_native.cached_cast(value, dtype)
        # One that was made under no_grad has no gradient: before torch 2.13 it is given out all the same.
        if cast.requires_grad or not value.requires_grad or not torch.is_grad_enabled():
            return cast
    return value.to(dtype)


def _keys() -> Any:
    found = private.DispatchKeySet(private.DispatchKey.AutocastCPU)
    for key in registry.AUTOCAST:
        if hasattr(private.DispatchKey, key):
            found = found | private.DispatchKeySet(getattr(private.DispatchKey, key))
    return found


_KEYS = _keys()
