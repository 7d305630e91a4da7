"""What commands write for other programs to read: JSON, to a file or to stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def refuse_unwritable(json_file: str | None) -> None:
    """Raise where `--json FILE` cannot be written, before the work whose results it is to hold."""
    if json_file in (None, "-"):
        return
    file = Path(str(json_file)).absolute()
    if not file.parent.is_dir():
        raise ValueError(f"--json {json_file}: there is no such folder")
    if file.is_dir():
        raise ValueError(f"--json {json_file}: it is a folder; name a file")
    if file.exists() and not file.is_file():
        return  # a pipe, which whoever made it will read
    new = not file.exists()
    with file.open("ab"):
        pass
    if new:
        file.unlink()


def write(what: dict[str, Any], json_file: str | None, indent: int = 2) -> None:
    """Write what was found, if somebody asked for it."""
    text = json.dumps(what, indent=indent) + "\n"
    if json_file == "-":
        sys.stdout.write(text)
    elif json_file is not None:
        Path(json_file).write_text(text, encoding="utf-8")
