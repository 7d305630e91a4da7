"""HTML in which text cannot be markup: whatever is not built here is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

VOID = {"br", "hr", "img", "input", "meta", "link"}


class Html(str):
    """Markup that was built, as against text that was given."""

    __slots__ = ()


def el(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. Attributes lose a trailing underscore, and write others as dashes; None and False leave one out.

    >>> el("a", "1 < 2", href="#x", class_="more", aria_label='"')
    '<a href="#x" class="more" aria-label="&quot;">1 &lt; 2</a>'
    """
    parts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"')
    start = f"<{name}{''.join(parts)}>"
    return Html(start if name in VOID else f"{start}{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Children one after the other: markup as it is, text escaped, lists opened, None left out.

    >>> join(["<", None, [el("b", "x")]])
    '&lt;<b>x</b>'
    """
    out: list[str] = []
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, Html):
            out.append(child)
        elif isinstance(child, str):
            out.append(html.escape(child, quote=True))
        elif isinstance(child, Iterable):
            out.append(join(child))
        else:
            out.append(html.escape(str(child)))
    return Html("".join(out))
