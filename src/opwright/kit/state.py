"""State held in C++: classes that extensions define, to make, to call, and to pass to operators."""

from __future__ import annotations

from typing import Any

from opwright.kit import private
from opwright.kit.extension import Paths, load_extension
from opwright.kit.spec import words


class StateClass(type):
    """A class of C++. Calling it makes an object, which `isinstance` knows; annotations of operators may name it."""

    __opwright_schema__: str
    _make: Any

    def __init__(cls, word: str, bases: tuple[type, ...], content: dict[str, Any]) -> None:
        super().__init__(word, bases, content)
        if bases:
            raise TypeError(
                f"{word}: {bases[0]!r} cannot be subclassed in Python, which its objects know nothing of; hold one in "
                f"an attribute"
            )

    def __getattr__(cls, word: str) -> Any:
        if word.startswith("_"):
            raise AttributeError(word)
        try:
            return getattr(cls._make, word)  # of def_static
        except (AttributeError, RuntimeError):
            raise AttributeError(f"{cls!r} has no static method {word!r}") from None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._make(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return private.class_of(value) == cls.__opwright_schema__

    def __repr__(cls) -> str:
        return f"<class {cls.__opwright_schema__.removeprefix(private.CLASSES)}, held in C++>"


class Classes:
    """The classes of an extension, by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, word: str) -> StateClass:
        if word.startswith("_"):
            raise AttributeError(word)
        make = private.class_in_cpp(self._name, word)
        if make is None:
            there = [kind.rpartition(".")[2] for kind in private.classes() if kind.startswith(f"{self._name}.")]
            cure = words.near(word, there) or f"; add OPWRIGHT_CLASS({word}, c) {{ … }} to its sources"
            raise AttributeError(f"{self._name} has no class {word!r}{cure}")
        schema = f"{private.CLASSES}{self._name}.{word}"
        made = StateClass(word, (), {"__opwright_schema__": schema, "_make": staticmethod(make)})
        setattr(self, word, made)  # one object, however often it is asked for
        return made


def load_classes(sources: Paths, *, name: str, **keywords: Any) -> Classes:
    """Build and load classes that hold state in C++, written with `opwright/state.h`; further keywords are those of
    `ow.load_extension`. Their objects are made and called from Python, pickled, passed to operators and to threads,
    and freed when the last user is gone. `torch.classes.NAME` has them too.

    >>> import opwright as ow
    >>> counting = ow.load_classes("counter.cpp", name="counting")  # doctest: +SKIP
    >>> counter = counting.Counter()  # doctest: +SKIP
    >>> counter.next(), counter.next()  # doctest: +SKIP
    (1, 2)
    """
    if "is_python_module" in keywords:
        raise TypeError(f"{name}: classes are registered, and make no Python module; leave is_python_module away")
    load_extension(sources, name=name, is_python_module=False, **keywords)
    return Classes(name)
