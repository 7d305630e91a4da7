"""Types that torch functions accept: a base for one's own, and four that are useful as they are."""

from opwright.tensors.fallback import DenseWarning
from opwright.tensors.like import TensorLike
from opwright.tensors.scaled_identity import ScaledIdentity

__all__ = ["DenseWarning", "ScaledIdentity", "TensorLike"]
