"""A public name as a line of text, and parameters as the line spells them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

HEAD = """\
# What opwright promises: every public name, one a line. A line that goes or changes is a breaking change, a new one is
# an addition. `python -m release.api` writes this file; CONTRIBUTING.md says what follows for the version.
"""
KINDS = (
    *("module", "constant", "class", "method", "property", "attribute", "function", "operator"),
    *("command", "option", "argument", "variable", "macro", "c++", "deprecated"),
)


@dataclass(frozen=True, order=True)
class Entry:
    """One public name: what it is, its full name, and the rest of the line, such as a signature."""

    kind: str
    name: str
    rest: str = ""

    def __str__(self) -> str:
        return f"{self.kind:<11}{self.name}{self.rest}"


def write(entries: Iterable[Entry]) -> str:
    """The lines by kind and name, under a head that says what they are.

    >>> lines = write([Entry("function", "opwright.load", "(path, /)"), Entry("class", "opwright.Cost")]).splitlines()
    >>> lines[-3], lines[-1]
    ('class      opwright.Cost', 'function   opwright.load(path, /)')
    """
    found = sorted(set(entries), key=lambda e: (KINDS.index(e.kind), e.name, e.rest))
    blocks = ["\n".join(str(e) for e in found if e.kind == kind) for kind in KINDS]
    return "\n".join([HEAD, *(f"{block}\n" for block in blocks if block)])


def read(text: str) -> list[Entry]:
    """The lines of such a text.

    >>> read("# a comment\\n\\noption     opwright bench --json = None\\n")
    [Entry(kind='option', name='opwright bench --json', rest=' = None')]
    """
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        kind, _, rest = line.partition(" ")
        if kind not in KINDS:
            raise ValueError(f"tests/api.txt: a line must begin with one of {', '.join(KINDS)}, got {line!r}")
        rest = rest.strip()
        if kind == "deprecated":
            name, _, more = rest.partition(": ")
            found.append(Entry(kind, name, f": {more}"))
            continue
        split = re.search(r"\(| = | as |: ", rest)
        cut = len(rest) if split is None else split.start()
        found.append(Entry(kind, rest[:cut], rest[cut:]))
    return found


@dataclass(frozen=True)
class Parameter:
    """One parameter of a signature or of a schema."""

    name: str
    type: str
    default: str | None
    by_position: bool
    by_keyword: bool
    several: bool  # *args, **kwargs

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is None and not self.several


def signature(rest: str) -> tuple[list[Parameter], str]:
    """Parameters and return type, of Python or of a schema.

    >>> [p.name for p in signature("(op, /, *, seed: int = 0) -> Report")[0]], signature("(Tensor x) -> Tensor")[1]
    (['op', 'seed'], 'Tensor')
    """
    end = _closing(rest)
    parts = _split(rest[1:end])
    found: list[Parameter] = []
    keyword_only = False
    for part in parts:
        if part == "/":
            found = [Parameter(p.name, p.type, p.default, True, False, p.several) for p in found]
        elif part == "*":
            keyword_only = True
        else:
            left, equals, default = part.partition("=")
            if ":" in left and not left.startswith(" "):
                name, _, kind = left.partition(":")
            elif " " in left.strip():
                kind, _, name = left.strip().rpartition(" ")
            else:
                name, kind = left, ""
            starred = name.startswith("*")
            found.append(
                Parameter(
                    name.strip(), kind.strip(), default.strip() if equals else None, not keyword_only, True, starred
                )
            )
            keyword_only = keyword_only or (starred and not name.startswith("**"))
    return found, rest[end + 1 :].removeprefix(" -> ")


def _closing(text: str) -> int:
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return at
    raise ValueError(f"a signature must end with a closing bracket, got {text!r}")


def _split(text: str) -> list[str]:
    """What stands between the commas of the outermost level."""
    parts, depth, quoted = [""], 0, ""
    for letter in text:
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "'\"":
            quoted = letter
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
