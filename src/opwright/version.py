"""The package's version and the torch versions it goes with, apart from the package so that a build need not import
torch."""

from __future__ import annotations

import re

__version__ = "0.1.0"

OLDEST_TORCH = (2, 10)
"""The oldest torch that it runs with."""

NEWEST_TORCH = (2, 15)
"""The newest torch that it was tried with, by `make test-versions`. Its own C++ uses parts of PyTorch that are promised
to nobody, so under a newer one Python does that work."""


def too_old(torch: str) -> str | None:
    """Why it does not run with a torch of this version; None when it does.

    >>> too_old("2.9.1+cpu"), too_old("2.10.0")
    ('opwright needs torch 2.10 or newer, got 2.9.1+cpu: pip install -U torch', None)
    """
    if _release(torch, OLDEST_TORCH) >= OLDEST_TORCH:
        return None
    return f"opwright needs torch {_dotted(OLDEST_TORCH)} or newer, got {torch}: pip install -U torch"


def untried(torch: str) -> str | None:
    """Why its own C++ is not used with a torch of this version; None when it is.

    >>> untried("2.15.3+cu130"), untried("2.16.0.dev20270101")[:37]
    (None, 'torch 2.16.0.dev20270101 is newer tha')
    """
    if _release(torch, NEWEST_TORCH) <= NEWEST_TORCH:
        return None
    return (
        f"torch {torch} is newer than any that opwright {__version__} was tried with; calls and gradients run in "
        f"Python, slower and just as right; OPWRIGHT_NATIVE=1 uses the C++ all the same"
    )


def _release(torch: str, unknown: tuple[int, int]) -> tuple[int, int]:
    """The first two numbers of a version; builds of a company's own may have none."""
    found = re.match(r"(\d+)\.(\d+)", torch)
    return (int(found[1]), int(found[2])) if found else unknown


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
