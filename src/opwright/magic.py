"""`%load_ext opwright.magic`: cells of C++ and CUDA in IPython and in notebooks.

    %%cpp doubled
    Tensor doubled(const Tensor& x) {
        return compute(x, [&](auto zero) { return map([](decltype(zero) v) { return 2 * v; }, x); });
    }

builds the cell and gives the functions that the first line names to the cells below, as `ow.inline` does; `%%cuda` is
for CUDA. After the names come flags for the compiler, and `--aten` for PyTorch's whole C++.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from opwright.kit.build.depends import absolute
from opwright.kit.build.trouble import BuildError, Unavailable
from opwright.kit.inline import inline
from opwright.kit.spec.options import Options


def load_ipython_extension(shell: Any) -> None:
    """What IPython calls for `%load_ext opwright.magic`."""
    for kind in ("cpp", "cuda"):
        shell.register_magic_function(_magic(shell, kind), magic_kind="cell", magic_name=kind)


def _magic(shell: Any, kind: str) -> Any:
    def build(line: str, cell: str) -> None:
        """Build the cell, and give the functions that are named here."""
        try:
            words = shlex.split(re.sub(r"(^|\s)(-[DUI])\s+", r"\1\2", line))  # `-D NAME=3` is one flag
            names, aten = [word for word in words if not word.startswith("-")], "--aten" in words
            if not names and not aten:
                raise ValueError(f"name the functions to give beside the magic, such as %%{kind} f")
            flags = [word for word in words if word.startswith("-") and word != "--aten"]
            # Folders begin where the notebook runs, and not where this file lies.
            options = Options(abi="aten" if aten else "stable", cxxflags=absolute(flags, Path.cwd()))
            sources: dict[str, Any] = {f"{kind}_sources": "\n" + cell}  # below the magic's line, so that lines agree
            made = inline(**sources, functions=names or None, options=options)
        except (BuildError, Unavailable, ValueError) as e:
            # Without frames, which would tell the reader of a cell nothing.
            raise shell_error(str(e).replace(f"{kind}_sources, line", "this cell, line")) from None
        shell.push(vars(made))

    return build


def shell_error(said: str) -> Exception:
    """An error that IPython shows without a traceback, where it has one."""
    try:
        from IPython.core.error import UsageError  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return BuildError(said)
    error: Exception = UsageError(said)
    return error
