"""How an operator's kernels are to be compiled, as their author says it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from typing import Literal

from opwright.kit.spec import words


@dataclass(frozen=True)
class Options:
    """How to compile an operator's kernels, beyond the usual.

    >>> Options(cxxflags=("-DFAST",), include=("third_party",)).abi
    'stable'
    """

    abi: Literal["stable", "aten"] = "stable"
    """`aten` gives the whole of PyTorch's C++ for a longer compilation and a library for one torch version."""
    sources: tuple[str, ...] = ()
    """Further sources, beside the kernel's own file."""
    cxxflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    debug: bool = False
    """Bounds checks in every accessor, symbols, little optimisation."""
    nvccflags: tuple[str, ...] = ()
    """Flags for nvcc alone; `cxxflags` reach the compiler behind it."""
    arch: tuple[str, ...] = ()
    """The GPUs to build for, such as `9.0` or `8.0+PTX`; those of this machine where it is empty."""
    rdc: bool = False
    """Relocatable device code: device functions and variables of one source used in another, linked in a step of
    their own."""

    def __post_init__(self) -> None:
        for word in ("sources", "cxxflags", "ldflags", "include", "nvccflags", "arch"):
            given = words.several("Options", word, getattr(self, word), "strings")
            if not all(isinstance(each, str) for each in given):
                raise TypeError(f"Options: {word} must be a tuple of strings, got {given!r}")
            object.__setattr__(self, word, given)
        words.one_of("Options", "abi", self.abi, ("stable", "aten"))
        for word in ("debug", "rdc"):
            words.flag("Options", word, getattr(self, word))

    def with_environment(self) -> Options:
        """These options with those of the environment added."""
        return replace(
            self,
            cxxflags=(*self.cxxflags, *shlex.split(os.environ.get("OPWRIGHT_CXXFLAGS", ""))),
            ldflags=(*self.ldflags, *shlex.split(os.environ.get("OPWRIGHT_LDFLAGS", ""))),
            include=(*self.include, *filter(None, os.environ.get("OPWRIGHT_INCLUDE", "").split(os.pathsep))),
            nvccflags=(*self.nvccflags, *shlex.split(os.environ.get("OPWRIGHT_NVCCFLAGS", ""))),
            debug=self.debug or os.environ.get("OPWRIGHT_DEBUG", "") not in ("", "0"),
        )
