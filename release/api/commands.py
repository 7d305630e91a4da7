"""The command line: its commands, with their arguments and options."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from release.api.entries import Entry


def entries() -> list[Entry]:
    """Every command, and what each takes."""
    from typer.main import get_command

    from opwright.cli.commands import app

    return list(_walk(get_command(app), "opwright"))


def _walk(command: Any, path: str) -> list[Entry]:
    found = [Entry("command", path)]
    defaults = inspect.signature(command.callback).parameters if command.callback else {}
    for parameter in command.params:
        if parameter.name in ("help", "install_completion", "show_completion"):
            continue
        default = _default(defaults[parameter.name].default) if parameter.name in defaults else ""
        if parameter.param_type_name == "argument":
            found.append(Entry("argument", f"{path} {parameter.name.upper()}", default))
        else:
            for option in (*parameter.opts, *parameter.secondary_opts):
                found.append(Entry("option", f"{path} {option}", default))
    for name, inner in getattr(command, "commands", {}).items():
        found += _walk(inner, f"{path} {name}")
    return found


def _default(value: object) -> str:
    """` = VALUE`; nothing where a call must give it."""
    if value is inspect.Parameter.empty:
        return ""
    return f" = {str(value) if isinstance(value, Path) else value!r}"
