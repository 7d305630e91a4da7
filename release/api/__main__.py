"""Accepts the public names as they are: writes tests/api.txt, and says what changed."""

from __future__ import annotations

from release.api import FILE, snapshot
from release.api.difference import compare, told
from release.api.entries import read

before = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
now = snapshot()
FILE.write_text(now, encoding="utf-8")
print(told(compare(read(before), read(now)), accepted=True) if before else f"wrote {FILE.name}, {len(read(now))} names")
