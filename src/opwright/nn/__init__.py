"""Modules over the operators, with the parameters and conventions of torch.nn."""

from opwright.nn.conv_bn import ConvBN2d, synchronise
from opwright.nn.elementwise import Cube, Scale, Sigmoid
from opwright.nn.fuse import Fusion, fuse_conv_bn
from opwright.nn.graph_conv import GraphConv
from opwright.nn.linear import Linear
from opwright.nn.lltm import LLTM, LLTMCell

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
