"""Source strings: put into files of the cache, where the plans that serve files find them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from opwright.kit.build import cache, places
from opwright.kit.build.trouble import NoCache

SOURCES = "sources"


def keep(texts: Mapping[str, str], frame: FrameType | None = None, called: Mapping[str, str] | None = None) -> Path:
    """The folder with a file for each text, the same for the same texts. `frame`: where they were handed over, which
    errors speak of."""
    whole = hashlib.sha256()
    for part in (part for pair in texts.items() for part in pair):
        whole.update(f"{len(part)} {part}".encode(errors="surrogatepass"))
    folder = cache.open_folder() / SOURCES / whole.hexdigest()[:16]
    for name, text in texts.items():
        _write(folder / name, text)
        if called is None or name in called:
            places.remember(str(folder / name), text, name if called is None else called[name], frame)
    return folder


def is_kept(file: Path) -> bool:
    """Whether a file holds a string that `keep` has put there."""
    with contextlib.suppress(NoCache):
        return file.parent.parent.name == SOURCES and file.is_relative_to(cache.folder())
    return False


def _write(file: Path, text: str) -> None:
    """Give a file its text, whole or not at all: another process may want to read it now."""
    try:
        data = text.encode(errors="surrogateescape")
    except UnicodeEncodeError as e:
        raise ValueError(f"a source string holds {text[e.start]!r}, which is half of a character") from None
    with contextlib.suppress(OSError):
        if file.read_bytes() == data:
            if time.time() - file.parent.stat().st_mtime > cache.MARKED:
                os.utime(file.parent)  # as the mark of an entry's use
            return
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent)
        with open(descriptor, "wb") as written:
            written.write(data)
        os.replace(name, file)
    except OSError as e:
        raise NoCache(
            f"a source string cannot be put into the cache {file.parent.parent} ({e.strerror}); "
            f"set OPWRIGHT_CACHE_DIR to a folder of yours"
        ) from None
