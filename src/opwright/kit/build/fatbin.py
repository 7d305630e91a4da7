"""Which GPUs a library has code for, read from the library itself."""

from __future__ import annotations

import struct
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, MACHINE_CODE = 1, 2


def code_in(file: Path) -> tuple[str, ...]:
    """The architectures in a library, written as they are asked for; empty when it has no code for a GPU.

    nvcc puts one container into a library for each source: a header, then for each architecture an entry with a header
    of its own, whose numbers at 0, 4, 8 and 28 are kind, header size, size and architecture.
    """
    data = file.read_bytes()
    found: dict[str, set[int]] = {}
    start = data.find(MAGIC)
    while start >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, start)
        at, end = start + header, start + header + size
        while header == 16 and at + 32 <= min(end, len(data)):
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, at)
            (arch,) = struct.unpack_from("<I", data, at + 28)
            if kind in (PTX, MACHINE_CODE) and 50 <= arch < 1000:
                found.setdefault(f"{arch // 10}.{arch % 10}", set()).add(kind)
            if entry_header + entry_size == 0:
                break
            at += entry_header + entry_size
        start = data.find(MAGIC, start + 4)
    return tuple(arch + ("+PTX" if PTX in kinds else "") for arch, kinds in sorted(found.items(), key=_number))


def _number(item: tuple[str, set[int]]) -> float:
    return float(item[0])
