"""Declaring the kernels that source files beside an operator hold."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opwright.kit.build.foreign import LOADED
from opwright.kit.build.library import library_of
from opwright.kit.build.plan import Options
from opwright.kit.dispatch.kernel import Kernel
from opwright.kit.spec.domain import Domain

if TYPE_CHECKING:
    from opwright.kit.op import Op


def declare(op: Op[..., Any], file: str, domain: Domain, options: Options) -> None:
    """The kernel of one file."""
    domain.refuse_names(op.name, op.signature.names)
    folder = Path(inspect.getfile(inspect.unwrap(op.home.reference))).resolve().parent
    on_gpu = Path(file).stem == "cuda" or any(f.endswith(".cu") for f in (file, *options.sources))
    device = "cuda" if on_gpu else "cpu"
    library = library_of(folder / file, op.namespace, options, device)
    library.look_again()
    library.guarded = library.guarded or op.home.__module__.startswith(f"{LOADED}.")
    op.kernels.append(Kernel(device, domain, file, library=library))
    op._choose_call()


def declare_all(
    op: Op[..., Any], files: Sequence[str], domain: Domain, backward: Domain | None, options: Options
) -> None:
    """The kernels of several files; with a domain for its gradient, those that a recorded call runs as well."""
    if not files or not all(isinstance(file, str) for file in files):
        got = ", ".join(map(repr, files)) or "nothing"
        raise TypeError(f'{op.name}: name its files and then domain=…, such as kernel_files("cpu.cpp"), got {got}')
    for file in files:
        declare(op, file, domain, options)
        if backward is not None:
            if op.saving_form is not None:
                declare(op.saving_form, file, domain, options)
            declare(op.backward, file, backward, options)
