"""Where a source string stands: what the compiler says of the file it was put into is told of the script or cell."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from dataclasses import dataclass
from types import FrameType


@dataclass(frozen=True)
class Place:
    """A string that was written out, what it is called, and the script or cell that handed it over."""

    text: str
    called: str
    file: str
    line: int
    """Where in that file it was handed over."""

    def first_line(self) -> int | None:
        """The line of the script on which the string begins; None where it was made while running."""
        try:
            tree = ast.parse("".join(linecache.getlines(self.file)) or _NOTHING)
        except SyntaxError:  # a cell may hold lines for the notebook alone
            return None
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == self.text]
        first = min(found, key=lambda n: abs(n.lineno - self.line), default=None)
        return None if first is None else _lined_up(first, self.text, linecache.getline(self.file, first.lineno))

    def spoken(self, line: int, column: str) -> str:
        """A line of the string, as its author finds it."""
        first = self.first_line()
        if first is None:
            return f"{self.called}, line {line}"
        cell = _cell(self.file)
        return f"{cell}, line {first + line - 1}" if cell else f"{self.file}:{first + line - 1}{column}"


def _lined_up(literal: ast.Constant, text: str, opening: str) -> int | None:
    """The line of the first one of a literal's text; None where its lines are not those of the text: one that is
    escaped (`"a\\nb"`), or that goes on behind a backslash."""
    lines = (literal.end_lineno or literal.lineno) - literal.lineno + 1
    begins_below = opening.rstrip("\r\n").endswith(("'''\\", '"""\\'))
    if lines != text.count("\n") + 1 + begins_below:
        return None
    return literal.lineno + begins_below


_NOTHING = "..."

_places: dict[str, Place] = {}


def remember(path: str, text: str, called: str, frame: FrameType | None) -> None:
    """A string was written into a file, for somebody whose frame this is."""
    file, line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    _places[path] = Place(text, called, file, line)


def _cell(file: str) -> str | None:
    """A notebook's cell, by the number that its reader sees."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return " ".join(named) if named else None


def told(message: str) -> str:
    """What a compiler said, of the strings in place of the files that they were put into."""
    if not any(path in message for path in _places):
        return message
    lines, shift = [], 0
    for line in message.splitlines():
        numbered = re.match(r"( *)(\d+)( \|.*)", line)
        if numbered:  # what the compiler shows of the source
            number = str(int(numbered[2]) + shift)
            line = numbered[1][len(number) - len(numbered[2]) :] + number + numbered[3]
        for path, place in _places.items():
            found = re.search(re.escape(path) + r"[:(](\d+)\)?(:\d+)?", line)
            if found:
                line = line[: found.start()] + place.spoken(int(found[1]), found[2] or "") + line[found.end() :]
                first = place.first_line()
                shift = 0 if first is None else first - 1
            line = line.replace(path, place.called)
        lines.append(line)
    return "\n".join(lines)
