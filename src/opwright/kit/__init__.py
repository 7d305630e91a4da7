"""The toolkit. It knows no operator by name."""

import torch

from opwright.version import too_old

_why = too_old(torch.__version__)
if _why is not None:  # before anything that an older torch does not have
    raise ImportError(_why)
