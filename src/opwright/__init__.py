"""opwright: write a PyTorch operator once, as a plain function.

>>> import torch, opwright as ow
>>> @ow.op
... def softplus(x: torch.Tensor, *, beta: float = 1.0) -> torch.Tensor:
...     return torch.log1p(torch.exp(beta * x)) / beta
>>> softplus(torch.zeros(1))
tensor([0.6931])
"""

from __future__ import annotations

import importlib as _importlib
from pathlib import Path as _Path
from typing import TYPE_CHECKING
from typing import Any as _Any

from opwright.kit.build.trouble import BuildError
from opwright.kit.check import check
from opwright.kit.define import in_place, op
from opwright.kit.explain import Explanation, explain
from opwright.kit.load import discover as _discover
from opwright.kit.load import load
from opwright.kit.op import Op
from opwright.kit.spec.domain import FLOATING, Cost, Domain
from opwright.kit.spec.kinds import Like, Number
from opwright.kit.spec.options import Options
from opwright.kit.spec.probe import BadReference
from opwright.kit.spec.require import broadcastable, require
from opwright.kit.spec.samples import Maker, Sample
from opwright.kit.spec.values import reduce_to
from opwright.version import __version__

__all__ = [
    "FLOATING",
    "BadReference",
    "BuildError",
    "Cost",
    "Domain",
    "Explanation",
    "Graph",
    "Like",
    "Maker",
    "Number",
    "Op",
    "Options",
    "Sample",
    "__version__",
    "adopt",
    "broadcastable",
    "check",
    "explain",
    "graph_conv",
    "in_place",
    "inline",
    "load",
    "load_classes",
    "load_extension",
    "load_package",
    "nn",
    "op",
    "package",
    "reduce_to",
    "require",
    "sddmm",
    "spmm",
    "tensors",
]

_operators = _discover(_Path(__file__).parent / "ops", "opwright.ops")
globals().update(_operators)
__all__ += [name for name in _operators if name not in __all__]

from opwright import nn  # noqa: E402  modules and functions stand on the operators above
from opwright.graphs import Graph, graph_conv, sddmm, spmm  # noqa: E402

if TYPE_CHECKING:
    from opwright import tensors as tensors
    from opwright.kit.adopt import adopt as adopt
    from opwright.kit.deploy.loader import load_package as load_package
    from opwright.kit.deploy.package import package as package
    from opwright.kit.extension import load_extension as load_extension
    from opwright.kit.inline import inline as inline
    from opwright.kit.state import load_classes as load_classes


_LATER = {
    "adopt": "opwright.kit.adopt",
    "inline": "opwright.kit.inline",
    "load_classes": "opwright.kit.state",
    "load_extension": "opwright.kit.extension",
    "load_package": "opwright.kit.deploy.loader",
    "package": "opwright.kit.deploy.package",
}


def __getattr__(name: str) -> Op[..., _Any]:
    if name == "tensors":  # loaded when first asked for, to keep the import lean
        return _importlib.import_module("opwright.tensors")  # type: ignore[return-value]
    if name in _LATER:
        return getattr(_importlib.import_module(_LATER[name]), name)  # type: ignore[no-any-return]
    # Operators are found, not listed: this tells type checkers so, and a reader what there is.
    import difflib

    near = difflib.get_close_matches(name, __all__, 1)
    hint = f"did you mean {near[0]}?" if near else f"its operators are {', '.join(_operators)}"
    raise AttributeError(f"opwright has no {name!r}; {hint}")
