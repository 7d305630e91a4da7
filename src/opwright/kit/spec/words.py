"""What an author may say: values held against those there are, so that a typo is an error where it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def one_of(where: str, word: str, given: Any, choices: Iterable[str]) -> None:
    """Raise unless a value is one of a few words.

    >>> one_of("Domain", "layout", "contigous", ("any", "contiguous"))
    Traceback (most recent call last):
    ValueError: Domain: layout must be 'any' or 'contiguous', got 'contigous'; did you mean contiguous?
    """
    known = list(choices)
    if isinstance(given, str) and given in known:
        return
    *others, last = map(repr, known)
    listed = f"{', '.join(others)} or {last}" if others else last
    raise ValueError(f"{where}: {word} must be {listed}, got {given!r}{near(given, known)}")


def near(given: Any, known: Iterable[str]) -> str:
    """The known word that somebody may have meant, as the end of a sentence; nothing where none is near.

    >>> near("leadng", ["leading"]), near(3, ["leading"])
    ('; did you mean leading?', '')
    """
    found = difflib.get_close_matches(given, list(known), 1) if isinstance(given, str) else []
    return f"; did you mean {found[0]}?" if found else ""


def flag(where: str, word: str, given: Any) -> None:
    """Raise unless a value is True or False.

    >>> flag("op", "random", "no")
    Traceback (most recent call last):
    TypeError: op: random must be True or False, got 'no'
    """
    if not isinstance(given, bool):
        raise TypeError(f"{where}: {word} must be True or False, got {given!r}")


def several(where: str, word: str, given: Any, what: str) -> tuple[Any, ...]:
    """Several values as a tuple; raise for one that stands alone, a string above all, which is many letters.

    >>> several("Domain", "wide", ["h", "c"], "names")
    ('h', 'c')
    >>> several("Domain", "wide", "state", "names")
    Traceback (most recent call last):
    TypeError: Domain: wide must be a tuple of names, got 'state'; write wide=('state',)
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{where}: {word} must be a tuple of {what}, got {given!r}; write {word}=({given!r},)")
    return tuple(given)


def function(where: str, word: str, given: Any) -> None:
    """Raise unless a value can be called."""
    if not callable(given):
        raise TypeError(f"{where}: {word} must be a function, got {type(given).__name__} {given!r}")
