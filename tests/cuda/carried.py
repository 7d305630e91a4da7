"""Runs the library's operators on a GPU from libraries that were built elsewhere, without a compiler.

opwright build --device cuda --arch 9.0 --to FOLDER        # anywhere: no GPU, any torch from 2.10 on
PYTHONPATH=src python tests/cuda/carried.py FOLDER         # where the GPU is
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main(folder: str) -> None:
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"OPWRIGHT_PREBUILT": folder, "OPWRIGHT_BUILD": "0", "OPWRIGHT_CACHE_DIR": empty}
        import torch

        import opwright as ow
        from opwright.kit.build.library import libraries

        x = torch.arange(5.0, device="cuda", requires_grad=True)
        for got, want in (
            (ow.axpby(x, x, a=2), 3 * x),
            (ow.scale(x, 2), 2 * x),
            (ow.cube(x), x * x * x),
            (ow.sigmoid(x), torch.sigmoid(x)),
            (ow.linear(x, torch.ones(2, 5, device="cuda")), x.sum().expand(2)),
        ):
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
        loaded = {library.file.parent.name: library for library in libraries() if library.key}
        assert sorted(loaded) == ["axpby", "cube", "linear", "scale", "sigmoid"], loaded
        print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {torch.cuda.get_device_name()}:")
        for name, library in loaded.items():
            made = next(p for p in Path(folder, "entries").glob("*/about.json") if str(library.key) in p.read_text())
            print(f"  {name}: {made.parent.name}, right forward and backward")


if __name__ == "__main__":
    main(sys.argv[1])
