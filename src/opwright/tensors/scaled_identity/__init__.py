"""value · I in O(1) memory: the type, and what torch functions do with it, one file a family."""

from opwright.tensors.scaled_identity import algebra, linear, measures, shapes
from opwright.tensors.scaled_identity.type import ScaledIdentity

__all__ = ["ScaledIdentity"]

del algebra, linear, measures, shapes  # imported for the overrides they register
