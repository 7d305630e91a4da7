"""The cache stays within its limit: what was not used for longest goes first, and what is needed stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opwright.kit import doctor
from opwright.kit.build import cache, compile, lockfile, own, room
from opwright.kit.build.plan import Plan
from tests.kit.build.workshop import KERNEL_RAN, Workshop

SIZE = 1000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return cache.open_folder()


def keep(root: Path, key: str, days: float, size: int = SIZE) -> Path:
    """An entry that was last used so many days ago."""

    def make(private: Path) -> dict[str, Any]:
        (private / cache.LIBRARY).write_bytes(b"x" * size)
        return {"key": key, "name": key, "seconds": 1.0, "torch": "2"}

    place = cache.obtain(root, key, key, make).library.parent
    when = time.time() - days * cache.DAY
    os.utime(place, (when, when))
    return place


def keys(root: Path) -> set[str]:
    return {place.name for place in (root / "entries").iterdir()}


@pytest.mark.parametrize(
    "asked, size",
    [
        ("", 2 << 30),
        ("0", None),
        ("500M", 500 << 20),
        ("2g", 2 << 30),
        ("1.5 GiB", 3 << 29),
        ("10KB", 10 << 10),
        ("123", 123),
        ("1T", 1 << 40),
    ],
)
def test_a_size_is_read_as_people_write_it(monkeypatch: pytest.MonkeyPatch, asked: str, size: int | None) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", asked)
    assert room.limit() == size


@pytest.mark.parametrize("asked", ["much", "-1", "5 apples", "1e9", "M"])
def test_a_size_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", asked)
    with pytest.raises(ValueError, match="OPWRIGHT_CACHE_SIZE must be a size such as 500M or 2G, or 0 for no limit"):
        room.limit()
    (finding,) = [f for f in doctor.examine() if f.what == "cache"]
    assert finding.verdict == "broken"
    assert "500M or 2G" in finding.fix


def test_what_was_not_used_for_longest_goes_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        keep(root, f"k{i}", days=10 - i)
    each = sum(f.stat().st_size for f in (root / "entries" / "k0").iterdir())
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", str(4 * each))
    assert cache.look_up(root, "k0") is not None  # used now, so that k1 is the oldest
    assert room.make_room(root, set) == 2 * each
    assert keys(root) == {"k0", "k3", "k4", "k5"}
    assert room.make_room(root, set) == 0
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", "0")
    assert room.make_room(root, set) == 0


def test_what_is_kept_or_was_used_just_now_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", "1")
    for key, days in (("own", 99.0), ("old", 98.0), ("hour", 1 / 24), ("now", 0.0)):
        keep(root, key, days)
    room.make_room(root, lambda: {"own"})
    assert keys(root) == {"own", "hour", "now"}


def test_the_mark_of_use_is_written_once_an_hour(root: Path) -> None:
    place = keep(root, "k", days=1)
    assert cache.look_up(root, "k") is not None
    marked = place.stat().st_mtime_ns
    assert time.time() - marked / 1e9 < 60
    assert cache.look_up(root, "k") is not None
    assert place.stat().st_mtime_ns == marked


def test_a_build_makes_room_and_keeps_the_packages_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = own.keys()
    for key in (*spared, "old"):
        keep(root, key, days=50)
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", "2K")
    (tmp_path / "quick.cpp").write_text("int answer() { return 42; }\n")
    plan = Plan("quick", (tmp_path / "quick.cpp",))
    compile.build(plan)
    assert keys(root) == {*spared, plan.key}


def test_old_logs_and_remains_go_with_a_build(root: Path) -> None:
    for name, days in (("new.log", 1), ("old.log", 40)):
        (root / "logs" / name).write_text("")
        when = time.time() - days * cache.DAY
        os.utime(root / "logs" / name, (when, when))
    (root / "building" / "dead.x").mkdir()
    os.utime(root / "building" / "dead.x", (0, 0))
    (root / "building" / "busy.x").mkdir()
    room.make_room(root, set)
    assert [file.name for file in (root / "logs").iterdir()] == ["new.log"]
    assert [file.name for file in (root / "building").iterdir()] == ["busy.x"]


def test_old_locks_go_unless_somebody_holds_them(root: Path) -> None:
    files = {name: root / "locks" / name for name in ("idle", "held", "new")}
    for file in files.values():
        file.touch()
        if file.name != "new":
            os.utime(file, (1, 1))
    with lockfile.opened(files["held"]) as held:
        assert lockfile.take(held, wait=False)
        room.make_room(root, set)
        assert {f.name for f in (root / "locks").iterdir()} == {"held", "new"}
        assert lockfile.stands(held, files["held"])


def test_who_waits_for_a_lock_that_is_removed_takes_the_one_that_stands(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = lockfile.take
    removed: list[bool] = []
    stood: list[bool] = []

    def take(held: int, *, wait: bool) -> bool:
        if not removed:
            removed.append(True)
            (root / "locks" / "key").unlink()  # somebody pruned just before
        return plain(held, wait=wait)

    monkeypatch.setattr(lockfile, "take", take)

    def make(private: Path) -> dict[str, Any]:
        with lockfile.opened(root / "locks" / "key") as other:
            stood.append(not plain(other, wait=False))
        (private / cache.LIBRARY).write_bytes(b"x")
        return {"key": "key"}

    cache.obtain(root, "key", "key", make)
    assert removed
    assert stood == [True]


def test_a_process_keeps_a_library_that_is_pruned(workshop: Workshop) -> None:
    folder = workshop.write()
    done = workshop.run(f"""
        import os, torch, opwright as ow
        from opwright.kit.build import cache, room
        op = ow.load({str(folder)!r}).times
        print(op(torch.ones(3), by=4).tolist())
        for place in (cache.folder() / "entries").iterdir():
            os.utime(place, (0, 0))
        os.environ["OPWRIGHT_CACHE_SIZE"] = "1"
        assert room.make_room(cache.folder(), set) > 0
        assert not list((cache.folder() / "entries").iterdir())
        print(op(torch.ones(3), by=4).tolist())
    """)
    assert done.stdout.splitlines() == [KERNEL_RAN] * 2, done.stderr


def test_the_command_shows_the_limit_and_prunes_what_nobody_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(root, "used", days=1)
    keep(root, "forgotten", days=50)
    keep(root, "newer", days=2)
    about = root / "entries" / "newer" / cache.ABOUT
    about.write_text("{}")  # as another version might write it
    monkeypatch.setenv("OPWRIGHT_CACHE_SIZE", "500M")
    command = [sys.executable, "-m", "opwright", "cache"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "3 libraries in" in said
    assert "of at most 500.0 MiB (OPWRIGHT_CACHE_SIZE)" in said
    assert "50.0 d ago" in said
    subprocess.run([*command, "--prune"], capture_output=True, text=True, check=True)
    assert keys(root) == {"used", "newer"}
