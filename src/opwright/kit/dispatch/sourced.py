"""Kernels that are written in strings, beside the operator in a script or in a notebook's cell."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from opwright.kit.build import depends, strings
from opwright.kit.spec import words
from opwright.kit.spec.domain import Domain
from opwright.kit.spec.operator import KernelSpec
from opwright.kit.spec.options import Options

if TYPE_CHECKING:
    from opwright.kit.op import Op

SUFFIX = {"cpu": ".cpp", "cuda": ".cu"}


def read(op: Op[..., Any], device: str, sources: Any, options: Any, name: Any, frame: FrameType) -> KernelSpec:
    """A kernel of source strings, which are put where the build finds them."""
    words.one_of(op.name, "the device of a source string", device, tuple(SUFFIX))
    texts = texts_of(op.name, "sources", sources)
    if not texts:
        raise TypeError(f"{op.name}: a kernel of source strings needs at least one, got none")
    if not isinstance(options, Options):
        raise TypeError(f"{op.name}: a kernel's options must be ow.Options, got {options!r}")
    if not isinstance(name, str):
        raise TypeError(f"{op.name}: a kernel's name must be a string, got {name!r}")
    files = [f"{op.name}_{device}{i or ''}{SUFFIX[device]}" for i in range(len(texts))]
    called = {file: f"string {i + 1} of {op.name}'s kernel" for i, file in enumerate(files)}
    folder = strings.keep(dict(zip(files, texts, strict=True)), frame, called)
    options = beside(options, _folder_of(op), files[1:])
    return KernelSpec(device, Domain(), name or f"{device} source", None, folder / files[0], options)


def texts_of(who: str, what: str, given: Any) -> list[str]:
    """Source strings as they may be given: one, several, or none that say anything."""
    if isinstance(given, bytes):
        raise TypeError(f"{who}: {what} must be strings of C++, got {given!r}")
    texts = [given] if isinstance(given, str) else list(words.several(who, what, given, "strings"))
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{who}: {what} must be strings of C++, got {text!r}")
    return [text for text in texts if text.strip()]


def beside(options: Options, folder: Path, more: Sequence[str]) -> Options:
    """Options for strings whose author stands in a folder: what they name is looked for there."""
    spelled = [os.fspath(folder / include) for include in options.include]
    sources = [os.fspath(folder / source) for source in options.sources]
    flags = depends.absolute(options.cxxflags, folder)
    return replace(options, include=tuple(spelled), cxxflags=flags, sources=(*more, *sources))


def _folder_of(op: Op[..., Any]) -> Path:
    """The folder of the script; of a notebook's cell, the one that the notebook runs in."""
    file = Path(inspect.getfile(inspect.unwrap(op.home.reference)))
    return file.resolve().parent if file.is_file() else Path.cwd()
