"""docs/shipping.md: every command that it shows, in order, in an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "shipping.md"


def commands() -> str:
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_runs(tmp_path: Path) -> None:
    place = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    [packages] = place.glob("lib/python*/site-packages")
    python = place / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    # torch, setuptools and the rest from the environment at hand, behind its own folder.
    (packages / "beside.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{ROOT / 'src'}\n")
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True)
    subprocess.run(install, check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPWRIGHT_")}
    environment = {**kept, "PATH": f"{place / 'bin'}:/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(place)}
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        ["bash", "-e", "-x", "-c", commands()],
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    made = {file.name.split("-py3")[0] for file in (tmp_path / "work" / "dist").glob("*.whl")}
    assert made == {"my_ops-0.1.0", "soft_ops-0.2.0"}
    assert "with no compiler" in done.stderr
    assert (tmp_path / "work" / "my_ops" / "src" / "my_ops" / "_opwright" / "manifest.json").is_file()


def test_the_page_shows_the_commands_that_matter() -> None:
    for word in ("new --package", "pip install", "pip wheel", "-m build", "--prove torch==", "--libraries", "--name"):
        assert word in commands(), word
