"""The checklist of a release. Each step gives what it found, and for each fault what to do."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from opwright import version as package
from release import api, building, changelog, stored, versions
from release.api import deprecations
from release.api.difference import compare, told, weight
from release.api.entries import read


@dataclass
class Context:
    """What the steps share."""

    root: Path = api.ROOT
    version: str = package.__version__
    today: datetime.date = field(default_factory=datetime.date.today)
    days: int = 30
    dry_run: bool = False
    tag: str = ""

    def git(self, *arguments: str) -> str | None:
        """What git prints; None when it fails."""
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=self.root)
        return done.stdout if done.returncode == 0 else None

    @property
    def dist(self) -> Path:
        """Where the files of the release go."""
        return self.root / "dist"

    @property
    def promised(self) -> str:
        """The public names as they were last accepted."""
        return (self.root / api.FILE.relative_to(api.ROOT)).read_text(encoding="utf-8")

    @property
    def releases(self) -> list[changelog.Release]:
        """What CHANGELOG.md says."""
        return changelog.read((self.root / "CHANGELOG.md").read_text(encoding="utf-8"))


@dataclass
class Found:
    """What a step found: in words, and what is wrong with what to do about it."""

    said: str = ""
    faults: list[tuple[str, str]] = field(default_factory=list)


def tree(context: Context) -> Found:
    """Everything is committed."""
    changed = context.git("status", "--porcelain")
    if changed is None:
        return Found(faults=[("this is no git repository", "run it in a clone")])
    lines = changed.splitlines()
    shown = ", ".join(line[3:] for line in lines[:5]) + (", …" if len(lines) > 5 else "")
    return Found(
        "clean", [(f"{len(lines)} files differ from what is committed: {shown}", "commit or stash")] if lines else []
    )


def names(context: Context) -> Found:
    """tests/api.txt has the public names as they are."""
    changes = compare(read(context.promised), read(api.snapshot()))
    return Found("tests/api.txt is fresh", [(told(changes), "python -m release.api")] if changes else [])


def version(context: Context) -> Found:
    """The version follows from the last one and from what changed since in the public names."""
    try:
        now = versions.parse(context.version)
    except ValueError as e:
        return Found(faults=[(str(e), "correct src/opwright/version.py")])
    if context.tag and context.tag != f"v{now}":
        return Found(
            faults=[(f"the tag is {context.tag}, the version {now}", f"tag it v{now}, or count the version up")]
        )
    last = changelog.last(context.releases, context.version)
    if last is None:
        return Found(f"{now} is the first release, so nothing is compared")
    before = context.git("show", f"v{last}:tests/api.txt")
    if before is None:
        return Found(faults=[(f"there is no tag v{last} with a tests/api.txt to compare with", "git fetch --tags")])
    old, new = read(before), read(context.promised)
    changes = compare(old, new)
    faults = [(why, "keep what users have, and deprecate it") for why in deprecations.early(context.version, old, new)]
    why = versions.refuse(versions.parse(last), now, weight(changes))
    if why is not None:
        listed = "".join(f"\n    {c.weight}: {c.what}" for c in changes)
        faults.append((f"{why}{listed}", "set __version__ in src/opwright/version.py"))
    return Found(f"{last} → {now}, {len(changes)} changes to public names, {weight(changes) or 'none'}", faults)


def log(context: Context) -> Found:
    """CHANGELOG.md has an entry for the version, with a date, and nothing unreleased."""
    return Found(
        f"has an entry for {context.version}", changelog.faults(context.releases, context.version, context.today)
    )


def docs(context: Context) -> Found:
    """The reference pages are those of the operators."""
    from opwright.kit import pages
    from opwright.kit.dispatch import registry

    folder = context.root / "docs" / "reference"
    operators = [op for op in registry.operators() if op.namespace == "opwright" and op.home is op]
    stale = [
        op.name
        for op in operators
        if not (file := folder / f"{op.name}.md").exists() or file.read_text(encoding="utf-8") != pages.page(op)
    ]
    stale += sorted({p.stem for p in folder.glob("*.md")} - {op.name for op in operators} - {"README"})
    faults = [(f"docs/reference is stale: {', '.join(stale)}", "make docs")] if stale else []
    return Found(f"docs/reference has {len(operators)} operators", faults)


def results(context: Context) -> Found:
    """Tests and measurements are stored, of this version and not too old."""
    oldest, newest = (f"{major}.{minor}" for major, minor in (package.OLDEST_TORCH, package.NEWEST_TORCH))
    faults = stored.faults(context.root, context.version, (oldest, newest), context.today, context.days)
    return Found(f"{len(stored.places(context.root))} files, none older than {context.days} days", faults)


def deprecated(context: Context) -> Found:
    """Deprecated names work until they are to go, and not longer."""
    from opwright.kit.deprecated import DEPRECATED

    faults = [(why, "see src/opwright/kit/deprecated.py") for why in deprecations.overdue(context.version)]
    faults += [
        (why, "see src/opwright/kit/deprecated.py") for why in deprecations.missing(context.version, api.entries())
    ]
    return Found("\n    ".join(["nothing" if not DEPRECATED else "these:", *map(str, DEPRECATED)]), faults)


def build(context: Context) -> Found:
    """Archive and wheel are built from what is committed, and carry the whole package."""
    if context.dry_run:
        return Found("would build the source archive and the wheel into dist/")
    sdist, wheel = building.build(context.root, context.dist)
    packed = building.names(wheel)
    missing = building.left_out((context.git("ls-files", "src") or "").splitlines(), packed)
    faults = [(f"{wheel.name} lacks {name}", "add it to package-data in pyproject.toml") for name in missing]
    for file in (sdist, wheel):
        if f"opwright-{context.version}" not in file.name:
            faults.append((f"{file.name} is not of {context.version}", "correct src/opwright/version.py"))
    sizes = ", ".join(f"{file.name} ({file.stat().st_size / 2**20:.2f} MiB)" for file in (sdist, wheel))
    return Found(f"{sizes}; {len(packed)} files in the wheel", faults)


def install(context: Context) -> Found:
    """The wheel runs an operator in an environment of its own."""
    if context.dry_run:
        return Found("would install the wheel into a fresh environment, and run an operator there")
    wheels = sorted(context.dist.glob(f"opwright-{context.version}-*.whl"))
    if not wheels:
        return Found(faults=[(f"dist/ has no wheel of {context.version}", "python -m release --only build")])
    return Found(building.prove(wheels[0]))


def publish(context: Context) -> Found:
    """What is left, by hand: this script neither pushes nor uploads."""
    tag = f"v{context.version}"
    if (context.git("tag", "--list", tag) or "").strip():
        return Found(faults=[(f"the tag {tag} exists", "count the version up, or remove a tag that nobody has seen")])
    files = sorted(f.name for f in context.dist.glob(f"opwright-{context.version}*")) or [
        f"opwright-{context.version}*"
    ]
    commands = [
        f'git tag --annotate {tag} --message "opwright {context.version}"',
        f"git push origin {tag}",
        f"python -m twine upload {' '.join(f'dist/{name}' for name in files)}",
    ]
    return Found("\n    ".join(["to be run by hand when all is well:", *commands]))


STEPS: dict[str, Callable[[Context], Found]] = {
    "tree": tree,
    "names": names,
    "version": version,
    "changelog": log,
    "docs": docs,
    "results": results,
    "deprecated": deprecated,
    "build": build,
    "install": install,
    "publish": publish,
}
