"""The properties that an operator is checked for, one file each: whatever lies in this folder."""

import pkgutil

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""The properties by name."""
