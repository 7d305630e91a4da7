"""The examples in what makes a release are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import release

MODULES = [m.name for m in pkgutil.walk_packages(release.__path__, "release.") if "__main__" not in m.name]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
