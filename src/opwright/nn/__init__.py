"""Modules over the operators, with the parameters and conventions of torch.nn."""

from opwright.nn.conv_bn import ConvBN2d
from opwright.nn.elementwise import Cube, Scale, Sigmoid
from opwright.nn.linear import Linear
from opwright.nn.lltm import LLTM, LLTMCell

__all__ = ["LLTM", "ConvBN2d", "Cube", "LLTMCell", "Linear", "Scale", "Sigmoid"]
