"""Where pickles that were made before version 0.1 look for operators."""

from opwright.kit.dispatch.registry import recall as recall
