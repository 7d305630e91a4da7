"""Types that torch functions accept: a base for one's own, and some that are useful as they are.

>>> import torch
>>> from opwright import tensors
>>> x = tensors.ScaledIdentity(10**6, 2.0)
>>> torch.logdet(x @ x)
tensor(1386294.3750)
"""

from torch.serialization import add_safe_globals as _add_safe_globals

from opwright.tensors.annotated import Annotated
from opwright.tensors.coverage import Coverage, coverage
from opwright.tensors.fallback import DenseWarning
from opwright.tensors.like import TensorLike
from opwright.tensors.log import Call, CallLog, Followed, log_calls
from opwright.tensors.scaled_identity import ScaledIdentity

__all__ = [
    "Annotated",
    "Call",
    "CallLog",
    "Coverage",
    "DenseWarning",
    "Followed",
    "ScaledIdentity",
    "TensorLike",
    "coverage",
    "log_calls",
]

# Plain values all of them, so torch.load may rebuild them without weights_only=False.
_add_safe_globals([Annotated, Call, CallLog, Followed, ScaledIdentity])
