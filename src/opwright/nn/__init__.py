"""Modules over the operators, with the parameters and conventions of torch.nn."""

from opwright.nn.elementwise import Cube, Scale, Sigmoid
from opwright.nn.graph_conv import GraphConv
from opwright.nn.linear import Linear
from opwright.nn.lltm import LLTM, LLTMCell

__all__ = ["LLTM", "Cube", "GraphConv", "LLTMCell", "Linear", "Scale", "Sigmoid"]
