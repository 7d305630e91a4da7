"""Graphs, and the functions over them."""

from opwright.graphs.convolution import graph_conv
from opwright.graphs.graph import Graph
from opwright.graphs.neighbours import sddmm, spmm

__all__ = ["Graph", "graph_conv", "sddmm", "spmm"]
