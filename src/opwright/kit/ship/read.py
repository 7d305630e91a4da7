"""What is in a wheel."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any

from opwright.kit.build import shipped


@dataclass(frozen=True)
class Wheel:
    """A wheel that ships operators."""

    name: str
    version: str
    tag: str
    packages: tuple[str, ...]
    """Those that have libraries, or all where none has."""
    requires: tuple[str, ...]
    libraries: tuple[dict[str, Any], ...]
    own: tuple[dict[str, Any], ...]
    files: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> Wheel:
        """Read a wheel; ValueError where it is none."""
        try:
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                info = next(name for name in names if name.endswith(".dist-info/METADATA"))
                metadata = Parser().parsestr(archive.read(info).decode())
                found = [name for name in names if name.endswith(f"/{shipped.FOLDER}/{shipped.MANIFEST}")]
                manifests = [json.loads(archive.read(name)) for name in found]
        except (OSError, zipfile.BadZipFile, StopIteration, ValueError) as e:
            raise ValueError(f"{file} is no wheel: {e or 'it has no metadata'}") from None
        tops = [name.partition("/")[0] for name in found or names if name.endswith(("/__init__.py", shipped.MANIFEST))]
        if not tops:
            raise ValueError(f"{file} has no package")
        return cls(
            name=metadata["Name"],
            version=metadata["Version"],
            tag=file.stem.split("-", 2)[2],
            packages=tuple(dict.fromkeys(tops)),
            requires=tuple(metadata.get_all("Requires-Dist") or ()),
            libraries=tuple(row for manifest in manifests for row in manifest["libraries"]),
            own=tuple(row for manifest in manifests for row in manifest.get("own", ())),
            files=tuple(names),
        )

    def unpack(self, file: Path, folder: Path) -> None:
        """Put its files where Python imports from, as an installer would."""
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                inside = PurePosixPath(member.filename)
                if inside.is_absolute() or ".." in inside.parts:
                    raise ValueError(f"{file} has a file outside of its folder: {member.filename}")
                archive.extract(member, folder)
