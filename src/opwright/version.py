"""The package's version, apart from the package so that a build need not import torch."""

__version__ = "0.1.0"
