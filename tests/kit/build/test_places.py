"""Where the cache may lie: network drives without locks, read-only images, users without a home, several versions."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit import doctor
from opwright.kit.bench import limits
from opwright.kit.build import cache, compile, lockfile, prebuilt
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import NoCache
from tests.kit.build.workshop import KERNEL_RAN, REFERENCE_RAN, USE, Workshop

# Somebody without a name, who may write nothing of root's, and read all of it: this Python may lie in root's home.
BECOME = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "--bounding-set=-all,+dac_read_search"]
BECOME += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
as_root = pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can become somebody else, with setpriv",
)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "quick.cpp").write_text("int answer() { return 42; }\n")
    return Plan("quick", (tmp_path / "quick.cpp",))


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP], ids=["ENOLCK", "EOPNOTSUPP"])
def _without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def flock(*_: Any) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("_without_locks")
def test_a_drive_without_locks_will_do(plan: Plan) -> None:
    entry = compile.build(plan)
    assert cache.look_up(cache.folder(), plan.key) == entry
    assert not list((cache.folder() / "building").iterdir())


@pytest.mark.usefixtures("_without_locks")
def test_without_locks_the_first_to_be_done_is_taken_by_all(plan: Plan) -> None:
    root = cache.open_folder()
    together, found = threading.Barrier(4), []

    def make(private: Path) -> dict[str, Any]:
        (private / cache.LIBRARY).write_text(str(threading.get_ident()))
        together.wait()  # all of them build, none has published yet
        return {"key": "k", "builder": threading.get_ident()}

    threads = [threading.Thread(target=lambda: found.append(cache.obtain(root, "k", "k", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    kept = cache.look_up(root, "k")
    assert found == [kept] * 4
    assert not list((root / "building").iterdir())
    for entry in found:
        entry.to_load()


@pytest.mark.usefixtures("_without_locks")
def test_without_locks_only_old_remains_are_pruned(plan: Plan) -> None:
    root = cache.open_folder()
    for name, age in (("new.x", 0), ("old.x", 2 * cache.DAY)):
        (root / "building" / name).mkdir()
        when = (root / "building" / name).stat().st_mtime - age
        os.utime(root / "building" / name, (when, when))
    cache.prune(root, lambda entry: True)
    assert [left.name for left in (root / "building").iterdir()] == ["new.x"]


def test_another_error_of_a_lock_is_told(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: Any, **__: Any) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lockfile, "take", take)
    with pytest.raises(NoCache, match=r"cannot be used .*set OPWRIGHT_CACHE_DIR to another folder"):
        compile.build(plan)


@pytest.fixture
def _homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in the list of users."""
    import pwd

    def getpwuid(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    for name in ("HOME", "XDG_CACHE_HOME", "OPWRIGHT_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_homeless")
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NoCache, match=r"no home folder .*set OPWRIGHT_CACHE_DIR to a folder of yours"):
        cache.open_folder()
    (finding,) = [f for f in doctor.examine() if f.what == "cache"]
    assert finding.verdict == "broken"
    assert "set OPWRIGHT_CACHE_DIR" in finding.fix
    assert limits.limits("machine", (), lambda what: [(1, 2.0)]).copy == [(1, 2.0)]
    monkeypatch.setenv("OPWRIGHT_PREBUILT", "~/made")
    assert prebuilt.folders() == [Path("~/made")]
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", "~/cache")
    with pytest.raises(NoCache, match="no home folder"):
        cache.open_folder()
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "mine"))
    assert cache.open_folder() == tmp_path / "mine"


def test_a_folder_that_is_not_absolute_means_the_same_everywhere(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", "here")
    assert compile.build(plan).library.is_relative_to(tmp_path / "here")
    monkeypatch.delenv("OPWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert cache.folder() == Path.home() / ".cache" / "opwright"


@pytest.fixture
def open_workshop() -> Iterator[Workshop]:
    """A workshop in a folder that other users can read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield Workshop(folder)
    shutil.rmtree(folder)


@as_root
@pytest.mark.parametrize(
    "home", [None, *(pytest.param(home, marks=pytest.mark.slow) for home in ("/", "/nonexistent", "another's"))]
)
def test_a_user_who_can_write_nowhere_uses_what_there_is(open_workshop: Workshop, home: str | None) -> None:
    folders = [open_workshop.write(name) for name in ("one", "two")]
    code = "\n".join(USE.format(folder=str(folder), name=folder.name) for folder in folders)
    environment = {k: v for k, v in open_workshop.environment.items() if k not in ("HOME", "OPWRIGHT_CACHE_DIR")}
    environment |= {"PYTHONPATH": str(Path(ow.__file__).parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    if home == "another's":
        made = open_workshop.root / "home" / ".cache" / "opwright" / "entries"
        made.mkdir(mode=0o700, parents=True)
        made.parent.chmod(0o700)
        home = str(open_workshop.root / "home")
    environment |= {"HOME": home} if home else {}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BECOME, sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/",
            env={**environment, **more},
        )  # fmt: skip

    done = run()
    if "setpriv:" in done.stderr:
        pytest.skip("this machine does not let us become somebody else")
    assert done.stdout.splitlines() == [REFERENCE_RAN] * 2, done.stderr
    assert done.stderr.count("the reference runs, since") == 1
    assert "set OPWRIGHT_CACHE_DIR to a folder of yours" in done.stderr
    made = open_workshop.root / "made"
    for folder in folders if home == "/" else ():
        to = f"""
            from pathlib import Path
            import opwright as ow
            from opwright.kit.build import prebuilt
            library = ow.load({str(folder)!r}).{folder.name}.kernels[0].library
            prebuilt.write(library.plan(), library.find(library.plan()), Path({str(made)!r}))
        """
        assert open_workshop.run(to).returncode == 0
    if home == "/":
        done = run(OPWRIGHT_PREBUILT=str(made))
        assert (done.stdout.splitlines(), done.stderr) == ([KERNEL_RAN] * 2, "")


def carried(plan: Plan, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put a library for a plan into a folder of prebuilt ones. What is in it does not matter to who looks for it."""
    library = folder.parent / "made.so"
    library.write_bytes(b"a library")
    about = {"key": plan.key, "sha256": hashlib.sha256(b"a library").hexdigest()}
    prebuilt.write(plan, cache.Entry(library, about), folder)
    monkeypatch.setenv("OPWRIGHT_PREBUILT", str(folder))


@pytest.mark.parametrize("abi", ["stable", "aten"])
@pytest.mark.parametrize(
    ("there", "for_aten"),
    [
        ("2.99.0", False),
        (f"{torch.__version__.partition('+')[0]}+other", True),
        ("of another commit", False),
    ],
)
def test_a_prebuilt_library_serves_every_torch_that_its_abi_allows(
    plan: Plan, abi: Any, there: str, for_aten: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh() -> Plan:
        return replace(plan, options=ow.Options(abi=abi))

    carried(fresh(), monkeypatch, tmp_path / "made")
    assert prebuilt.look_up(fresh()) is not None
    if there == "of another commit":
        monkeypatch.setattr(torch.version, "git_version", there)
    else:
        monkeypatch.setattr(torch, "__version__", there)
    assert (prebuilt.look_up(fresh()) is not None) == (abi == "stable" or for_aten)


def test_a_prebuilt_library_that_uses_python_serves_that_python_alone(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.sources[0].write_text("#include <torch/extension.h>\n")
    carried(replace(plan, options=ow.Options(abi="aten")), monkeypatch, tmp_path / "made")
    assert prebuilt.look_up(replace(plan, options=ow.Options(abi="aten"))) is not None
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    assert prebuilt.look_up(replace(plan, options=ow.Options(abi="aten"))) is None


EXPLAINED = """
import torch, opwright as ow
op = getattr(ow.load({folder!r}), {name!r})
print(ow.explain(op, torch.ones(3)).steps[0].why)
"""


@pytest.mark.slow
def test_what_is_prebuilt_or_cached_is_explained_as_built(workshop: Workshop) -> None:
    folder = workshop.write(options="abi='aten'", more="#include <ATen/core/Tensor.h>")
    made = workshop.root / "made"
    explained = EXPLAINED.format(folder=str(folder), name=folder.name)
    assert workshop.run(explained).stdout.strip().endswith("built on first use")
    built = workshop.run(
        f"import sys; sys.argv[1:] = ['build', {str(folder)!r}, '--to', {str(made)!r}]\n"
        f"from opwright.cli import main; main()"
    )
    assert built.returncode == 0, built.stderr
    assert workshop.run(explained, OPWRIGHT_BUILD="0").stdout.strip().endswith("built, and loaded on first use")
    shutil.rmtree(workshop.cache)
    assert "not built" in workshop.run(explained, OPWRIGHT_BUILD="0").stdout
    forbidden = {"OPWRIGHT_BUILD": "0", "OPWRIGHT_PREBUILT": str(made)}
    assert workshop.run(explained, **forbidden).stdout.strip().endswith("built, and loaded on first use")
    assert workshop.use(folder, **forbidden).stdout.strip() == KERNEL_RAN


def another_version(folder: Path) -> str:
    """The package as a later release might be: another kernel.h, another way to build. Its parent folder."""
    shutil.copytree(Path(ow.__file__).parent, folder / "opwright", ignore=shutil.ignore_patterns("__pycache__"))
    header = folder / "opwright" / "include" / "opwright" / "kernel.h"
    header.write_text(header.read_text(encoding="utf-8") + "\n// of another version\n", encoding="utf-8")
    plan = folder / "opwright" / "kit" / "build" / "plan.py"
    text = plan.read_text(encoding="utf-8")
    assert "\nFORMAT = " in text
    plan.write_text(text.replace("\nFORMAT = ", "\nFORMAT = 1000 + "), encoding="utf-8")
    return str(folder)


@pytest.mark.slow
def test_two_versions_share_a_cache_and_leave_each_other_alone(workshop: Workshop) -> None:
    folder = workshop.write()
    versions = [str(Path(ow.__file__).parent.parent), another_version(workshop.root / "other")]
    counts = []
    for version in versions:
        done = workshop.use(folder, PYTHONPATH=version)
        assert done.stdout.strip() == KERNEL_RAN, done.stderr
        assert "building times/cpu.cpp" in done.stderr
        counts.append(len(list((workshop.cache / "entries").iterdir())))
    assert counts[1] == 2 * counts[0]
    for version in versions:
        done = workshop.use(folder, PYTHONPATH=version)
        assert (done.stdout.strip(), done.stderr) == (KERNEL_RAN, "")
    command = [sys.executable, "-m", "opwright", "cache", "--prune"]
    environment = {**workshop.environment, "PYTHONPATH": versions[1]}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    assert len(list((workshop.cache / "entries").iterdir())) == counts[1]
