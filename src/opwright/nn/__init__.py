"""Modules over the operators, with the parameters and conventions of torch.nn."""

from opwright.nn.elementwise import Cube, Scale, Sigmoid
from opwright.nn.linear import Linear

__all__ = ["Cube", "Linear", "Scale", "Sigmoid"]
