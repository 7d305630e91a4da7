"""What is to be done once somebody else imports a module. It is not imported for it."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any


class _Watch:
    """Finds a module where Python would, and tells of it once it is there."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == self.name else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def execute(module: Any) -> None:
            run(module)
            self.then(module)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def when_imported(name: str, then: Callable[[Any], None]) -> None:
    """Call a function with a module: now if it is imported, else as soon as it is."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watch(name, then))  # type: ignore[arg-type]
