"""A library is loaded only when nobody else could have written it: its folders, and its files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opwright.kit.bench import limits
from opwright.kit.build import cache, compile, prebuilt
from opwright.kit.build.library import Library
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import Unavailable
from opwright.kit.spec.options import Options
from tests.kit.build.workshop import KERNEL_RAN, REFERENCE_RAN, Workshop

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of this kind are POSIX's")

FILES = [cache.LIBRARY, cache.ABOUT]
STRANGER = 12345


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cpu.cpp").write_text("int answer() { return 42; }\n")
    return Library(tmp_path / "cpu.cpp", "owned", Options()).plan()


@pytest.fixture
def loose() -> Iterator[None]:
    """The umask of many clusters, which lets groups write."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def spoil(file: Path, how: str) -> None:
    if how == "stranger":
        if os.getuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(file, STRANGER, STRANGER)
    elif how == "link":
        file.rename(file.with_suffix(".real"))
        file.symlink_to(file.with_suffix(".real"))
    else:
        file.chmod(int(how, 8))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "how, sentence", [("0666", "chmod go-w"), ("0664", "chmod go-w"), ("stranger", "another user")]
)
def test_a_prebuilt_file_that_others_could_have_written_is_refused(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, how: str, sentence: str
) -> None:
    monkeypatch.setenv("OPWRIGHT_PREBUILT", str(tmp_path / "made"))
    place = prebuilt.write(plan, compile.build(plan), tmp_path / "made")
    assert prebuilt.look_up(plan) is not None
    spoil(place / file, how)
    with pytest.raises(Unavailable, match=f"the file .*{file} .*{sentence}"):
        prebuilt.look_up(plan)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", ["0666", "0664", "stranger", "link"])
def test_a_file_in_the_cache_that_others_could_have_written_is_built_anew(plan: Plan, file: str, how: str) -> None:
    entry = compile.build(plan)
    spoil(entry.library.parent / file, how)
    assert cache.look_up(cache.folder(), plan.key) is None
    again = compile.build(plan)
    assert cache.look_up(cache.folder(), plan.key) == again


def test_links_among_prebuilt_files_are_not_followed(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_PREBUILT", str(tmp_path / "made"))
    place = prebuilt.write(plan, compile.build(plan), tmp_path / "made")
    spoil(place / cache.LIBRARY, "link")
    assert prebuilt.look_up(plan) is None


@pytest.mark.usefixtures("loose")
def test_what_is_written_under_a_loose_umask_can_be_loaded(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_PREBUILT", str(tmp_path / "made"))
    entry = compile.build(plan)
    assert cache.look_up(cache.folder(), plan.key) == entry
    place = prebuilt.write(plan, entry, tmp_path / "made")
    assert prebuilt.look_up(plan) is not None
    assert {f.name: f.stat().st_mode & 0o777 for f in place.iterdir()} == dict.fromkeys(FILES, 0o644)
    assert {f.stat().st_mode & 0o777 for f in (place, place.parent, place.parent.parent)} == {0o755}


@pytest.mark.usefixtures("loose")
def test_measured_limits_do_not_open_the_cache_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    limits.limits("machine", (), lambda what: [(1, 1.0)])
    assert cache.open_folder() == tmp_path / "cache"


@pytest.mark.parametrize("part", cache.PARTS)
def test_every_part_of_the_cache_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (cache.open_folder() / part).chmod(0o777)
    with pytest.raises(Unavailable, match=f"{part} can be written by others"):
        cache.open_folder()


def open_up(place: Path, how: str) -> None:
    if how == "stranger":
        spoil(place, how)
    else:
        place.chmod(int(how, 8))


@pytest.mark.parametrize("how, sentence", [("0777", "written by everybody"), ("stranger", "another user")])
def test_the_folders_above_the_cache_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, sentence: str
) -> None:
    above = tmp_path / "above"
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(above / "more" / "cache"))
    cache.open_folder()
    above.chmod(0o1777)
    cache.open_folder()  # as below /tmp
    open_up(above, how)
    with pytest.raises(Unavailable, match=f"the folder .*above .*{sentence}, .*set OPWRIGHT_CACHE_DIR to a folder el"):
        cache.open_folder()


@pytest.mark.parametrize("how, sentence", [("0777", "written by everybody"), ("stranger", "another user")])
def test_the_folders_above_prebuilt_libraries_are_looked_at(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, sentence: str
) -> None:
    monkeypatch.setenv("OPWRIGHT_PREBUILT", str(tmp_path / "above" / "made"))
    prebuilt.write(plan, compile.build(plan), tmp_path / "above" / "made")
    assert prebuilt.look_up(plan) is not None
    open_up(tmp_path / "above", how)
    with pytest.raises(Unavailable, match=f"the folder .*above .*{sentence}, .*set OPWRIGHT_PREBUILT to a folder el"):
        prebuilt.look_up(plan)


def test_a_prebuilt_folder_that_is_refused_hides_no_other(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    for place in (bad, good):
        prebuilt.write(plan, compile.build(plan), place)
    bad.chmod(0o777)
    monkeypatch.setenv("OPWRIGHT_PREBUILT", f"{bad}{os.pathsep}{good}")
    found = prebuilt.look_up(plan)
    assert found is not None
    assert found.library.is_relative_to(good)


@pytest.mark.slow
def test_a_prebuilt_folder_that_is_refused_is_named_and_does_not_keep_from_building(workshop: Workshop) -> None:
    folder, made = workshop.write(), workshop.root / "made"
    to = f"""
        from pathlib import Path
        import opwright as ow
        from opwright.kit.build import prebuilt
        library = ow.load({str(folder)!r}).times.kernels[0].library
        prebuilt.write(library.plan(), library.find(library.plan()), Path({str(made)!r}))
    """
    assert workshop.run(to).returncode == 0
    made.chmod(0o777)
    (workshop.cache / "entries").rename(workshop.cache / "gone")
    used = workshop.use(folder, OPWRIGHT_PREBUILT=str(made))
    assert used.stdout.strip() == KERNEL_RAN, used.stderr
    assert used.stderr.count(f"the folder {made} can be written by others") == 1
    (workshop.cache / "entries").rename(workshop.cache / "gone again")
    used = workshop.use(folder, OPWRIGHT_PREBUILT=str(made), OPWRIGHT_BUILD="0")
    assert used.stdout.strip() == REFERENCE_RAN, used.stderr
    assert f"the folder {made} can be written by others" in used.stderr


def test_a_library_that_changes_after_it_was_read_is_not_loaded(plan: Plan) -> None:
    entry = compile.build(plan)
    assert entry.to_load() == str(entry.library)
    other = entry.library.with_name("other")
    other.write_bytes(entry.library.read_bytes())
    other.replace(entry.library)
    with pytest.raises(Unavailable, match="was taken away or changed just now"):
        entry.to_load()


def test_a_library_that_is_pruned_before_it_is_loaded_is_built_again(workshop: Workshop) -> None:
    folder = workshop.write()
    done = workshop.run(f"""
        import shutil, torch, opwright as ow
        from opwright.kit.build import cache
        op = ow.load({str(folder)!r}).times
        plain, times = cache.Entry.to_load, []
        def to_load(entry):
            if not times:
                shutil.rmtree(entry.library.parent)
            times.append(1)
            return plain(entry)
        cache.Entry.to_load = to_load
        print(op(torch.ones(3), by=4).tolist())
    """)
    assert done.stdout.strip() == KERNEL_RAN, done.stderr
    assert done.stderr.count("built times/cpu.cpp") == 2


def test_a_library_that_changes_time_and_again_is_tried_in_the_next_call(workshop: Workshop) -> None:
    folder = workshop.write()
    done = workshop.run(f"""
        import torch, opwright as ow
        from opwright.kit.build import cache
        op = ow.load({str(folder)!r}).times
        plain, times = cache.Entry.to_load, []
        def to_load(entry):
            times.append(1)
            if len(times) < 3:
                raise cache.Changed("it was taken away or changed just now; try again")
            return plain(entry)
        cache.Entry.to_load = to_load
        for _ in range(2):
            print(op(torch.ones(3), by=4).tolist())
    """)
    assert done.stdout.splitlines() == [REFERENCE_RAN, KERNEL_RAN], done.stderr
    assert done.stderr.count("just now; try again") == 1


def test_build_to_a_folder_works_under_a_loose_umask(workshop: Workshop) -> None:
    folder, made = workshop.with_own_libraries().write(), workshop.root / "made"
    command = f"umask 002 && exec {sys.executable} -m opwright build {folder} --to {made}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=workshop.environment)
    assert done.returncode == 0, done.stderr
    (workshop.cache / "entries").rename(workshop.cache / "gone")
    used = workshop.use(folder, OPWRIGHT_PREBUILT=str(made), OPWRIGHT_BUILD="0")
    assert used.stdout.strip() == KERNEL_RAN, used.stderr
