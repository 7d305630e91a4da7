"""C++ and CUDA in strings, called as they are: no operator, no reference."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from opwright.kit import locks, private
from opwright.kit.build import places, strings
from opwright.kit.build.library import library_of
from opwright.kit.build.trouble import BuildError, Unavailable
from opwright.kit.dispatch import plain
from opwright.kit.dispatch.sourced import beside, texts_of
from opwright.kit.extension import load_strings, undefined_in
from opwright.kit.spec import words
from opwright.kit.spec.options import Options

_ANY_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](opwright|torch|ATen|c10)/", re.MULTILINE)
_NO_TYPE = re.compile(r"'(torch|at)' (does not name a type|has not been declared|was not declared)|namespace 'torch'")
_NOT_BOUND = re.compile(r"error: \w+: (it may return Tensor|write |.*\bschema\b)")

_made: dict[object, Functions] = {}
_making = locks.renewed()


class Functions(SimpleNamespace):
    """The functions of source strings, by name."""


def inline(
    cpp_sources: str | Sequence[str] = (),
    cuda_sources: str | Sequence[str] = (),
    *,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    options: Options = Options(),
) -> Functions:
    """Build functions from strings of C++ and CUDA, and give them to call: torch.utils.cpp_extension.load_inline here.

    Args:
        cpp_sources: C++, one string or several, as of one file. What no string includes, `opwright/kernel.h`, is
            included before them.
        cuda_sources: CUDA, as of another file. What it defines for C++ to call is declared in `cpp_sources`.
        functions: the names to give, or a dict of names and docstrings; of `cpp_sources` where there are any. None,
            with `abi="aten"`: the strings have a PYBIND11_MODULE, whose functions are given, or a TORCH_LIBRARY.
        options: how to compile them. `ow.Options(abi="aten")` takes `torch::Tensor` and whatever pybind11 converts: the
            strings of load_inline, unchanged.

    The same strings are built once on this machine; edited ones are another library. A tensor that a function returns
    has no gradient, and says so when somebody differentiates it: for one, make an operator.

    >>> import torch, opwright as ow
    >>> made = ow.inline('''
    ... Tensor doubled(const Tensor& x) {
    ...     return compute(x, [&](auto zero) { return map([](decltype(zero) v) { return 2 * v; }, x); });
    ... }
    ... ''', functions=["doubled"])
    >>> made.doubled(torch.ones(2))
    tensor([2., 2.])
    """
    cpp, cuda = (texts_of("inline", *each) for each in (("cpp_sources", cpp_sources), ("cuda_sources", cuda_sources)))
    if not cpp and not cuda:
        raise ValueError("inline: there is nothing to build; give cpp_sources or cuda_sources")
    if not isinstance(options, Options):
        raise TypeError(f"inline: options must be ow.Options, got {options!r}")
    frame = sys._getframe(1)
    if functions is None:
        if options.abi != "aten":
            raise ValueError(
                "inline: name the functions to give, such as functions=['f']; strings that bind their own are for "
                "options=ow.Options(abi='aten')"
            )
        return Functions(**load_strings(cpp, cuda, None, options, _folder_of(frame), frame))
    named = _named(functions, options.abi == "stable")
    _refuse_missing(named, cpp or cuda)
    if options.abi == "aten":
        return Functions(**load_strings(cpp, cuda, named, options, _folder_of(frame), frame))
    with _making:  # two threads that run the same cell
        return _functions(cpp, cuda, named, options, frame)


def _functions(cpp: list[str], cuda: list[str], named: dict[str, str], options: Options, frame: FrameType) -> Functions:
    device = "cuda" if cuda else "cpu"
    files, called = _files(cpp, cuda, list(named))
    folder = strings.keep(files, frame, called)
    first, *more = [name for name in files if name not in called]
    for name in (first, *more):
        places.remember(str(folder / name), files[name], BINDING, None)
    own = beside(options, _folder_of(frame), more)
    library = library_of(folder / first, plain.NAMESPACE, own, device)
    library.look_again()
    library.guarded = True
    try:
        key = library.require()
    except BuildError as e:
        raise _advised(e).with_traceback(None) from None  # of compilers, which run in threads
    except Unavailable as e:
        undefined = undefined_in(str(e))
        if undefined is None:
            raise
        raise BuildError(f"inline: the sources declare {undefined}, and none defines it") from None
    known = key, tuple(named.items())
    if known in _made:
        return _made[known]
    made = Functions(**{name: plain.function(library, name, doc) for name, doc in named.items()})
    _made[known] = made
    return made


def _files(cpp: list[str], cuda: list[str], names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The files to build, and what the strings among them, which they include, are called in errors."""
    files: dict[str, str] = {}
    called: dict[str, str] = {}
    for what, suffix, texts in (("cpp_sources", ".cpp", cpp), ("cuda_sources", ".cu", cuda)):
        lines = [] if any(_ANY_HEADER.search(text) for text in texts) else ["#include <opwright/kernel.h>"]
        for i, text in enumerate(texts):
            name = f"{what}_{i}{suffix}.h"
            files[name], called[name] = text, f"{what}[{i}]" if len(texts) > 1 else what
            lines.append(f'#include "{name}"')
        if texts and (suffix == ".cpp" or not cpp):
            devices = ("CPU", "CUDA") if cpp and cuda else ("CUDA",) if cuda else ("CPU",)
            lines += ["#include <opwright/kernel.h>"]
            lines += [f"OPWRIGHT_KERNEL({name}, {device}, {name});" for name in names for device in devices]
        if texts:
            files[f"inline{suffix}"] = "\n".join(lines) + "\n"
    return files, called


BINDING = "the lines that bind the functions"


def _named(functions: Any, stable: bool) -> dict[str, str]:
    """The names to give, each with its docstring."""
    if isinstance(functions, Mapping):
        named = dict(functions)
    else:
        names = [functions] if isinstance(functions, str) else words.several("inline", "functions", functions, "names")
        named = dict.fromkeys(names, "")
    if not named:
        raise ValueError("inline: name the functions to give, such as functions=['f']")
    for name, doc in named.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise ValueError(f"inline: a function's name is one of C++, got {name!r}")
        if name.startswith("__") or (stable and name in private.NAMESPACES_OWN):
            raise ValueError(f"inline: {name!r} has a use of its own in Python; call the function otherwise")
        if not isinstance(doc, str):
            raise TypeError(f"inline: {name}'s docstring must be a string, got {doc!r}")
    return named


def _refuse_missing(named: Mapping[str, str], texts: Sequence[str]) -> None:
    """Raise for a function that no string can define, before the compiler speaks of a line that nobody wrote."""
    whole = "\n".join(texts)
    for name in named:
        if not re.search(rf"\b{name}\b", whole):
            there = dict.fromkeys(re.findall(r"^\w[\w:<>,&* ]*?[ &*](\w+)\(", whole, re.MULTILINE))
            hint = words.near(name, there) or (f"; they define {', '.join(there)}" if there else "")
            raise BuildError(f"inline: the sources define no function {name!r}{hint}")


def _advised(e: BuildError) -> BuildError:
    """What the compiler said, and what to do where strings are of PyTorch's whole C++."""
    aten = "options=ow.Options(abi='aten')"
    if _NO_TYPE.search(str(e)):
        return BuildError(f"{e}\ntorch::Tensor is of PyTorch's whole C++: add {aten}, or write Tensor")
    if _NOT_BOUND.search(str(e)):
        return BuildError(f"{e}\nWhatever else pybind11 converts can be taken and returned with {aten}")
    return e


def _folder_of(frame: FrameType) -> Path:
    """The folder of whoever calls; of a notebook's cell, the one that the notebook runs in."""
    file = Path(frame.f_code.co_filename)
    return file.resolve().parent if file.is_file() else Path.cwd()
