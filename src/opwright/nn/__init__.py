"""Modules over the operators, with the parameters and conventions of torch.nn."""

from typing import TYPE_CHECKING, Any

from opwright.nn.conv_bn import ConvBN2d, synchronise
from opwright.nn.elementwise import Cube, Scale, Sigmoid
from opwright.nn.graph_conv import GraphConv
from opwright.nn.linear import Linear
from opwright.nn.lltm import LLTM, LLTMCell

if TYPE_CHECKING:
    from opwright.nn.fuse import Fusion, fuse_conv_bn

__all__ = [
    "LLTM",
    "ConvBN2d",
    "Cube",
    "Fusion",
    "GraphConv",
    "LLTMCell",
    "Linear",
    "Scale",
    "Sigmoid",
    "fuse_conv_bn",
    "synchronise",
]


def __getattr__(name: str) -> Any:
    """What few programs use is imported when they do."""
    if name not in ("Fusion", "fuse_conv_bn"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from opwright.nn import fuse

    globals().update({each: getattr(fuse, each) for each in ("Fusion", "fuse_conv_bn")})
    return globals()[name]
