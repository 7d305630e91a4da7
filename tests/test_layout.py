"""What the project says of its own shape."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "opwright"
SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if "template" not in p.parts)

# Who may import whom, below opwright; the package itself (`import opwright as ow`) stands for kit.op there.
ARROWS = {
    "kit": {"kit"},
    "ops": {"opwright"},
    "graphs": {"ops", "kit", "graphs"},
    "nn": {"ops", "kit", "graphs", "nn"},
    "cli": {"kit", "cli", "opwright", "tensors"},
    "tensors": {"tensors"},
}


# The floors of kit, from the ground up: each imports what stands before it, derive, build and truth not each other.
GROUND = ["deprecated", "locks", "private", "spec"]
FLOORS: dict[str, list[str]] = {"deprecated": [], "locks": [], "private": [], "spec": GROUND[:3]}
FLOORS |= dict.fromkeys(("derive", "build", "truth"), GROUND)
FLOORS["dispatch"] = [*GROUND, "derive", "build"]
FLOORS["op"] = [*FLOORS["dispatch"], "dispatch"]  # Op itself, and what makes and finds operators
OPERATORS = {"op", "declare", "kernels", "define", "packages", "load", "inline", "extension", "adopt", "state"}
ABOVE = [*FLOORS["op"], "op"]
FLOORS["workers"] = ABOVE
FLOORS |= dict.fromkeys(("explain", "pages", "scaffold", "doctor"), ABOVE)
FLOORS |= {"check": [*ABOVE, "truth", "workers"], "bench": [*ABOVE, "truth", "workers", "explain"]}
FLOORS["cpp"] = ABOVE
FLOORS["deploy"] = [*ABOVE, "cpp", "ship"]
FLOORS["ship"] = [*FLOORS["check"], "check", "scaffold"]


def part_of(name: str) -> str:
    part = name.removeprefix("opwright.kit.").partition(".")[0]
    return "op" if part in OPERATORS else part


def imports_of(file: Path, *, types: bool = True) -> list[str]:
    """The modules that a file imports, wherever the statement stands; `types`: those for annotations alone as well."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types
        for inner in ast.walk(node)
    }
    found = []
    for node in (n for n in ast.walk(tree) if n not in skipped):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.append(full if full in MODULES else str(node.module))
    return found


MODULES = {
    ".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): f
    for f in SOURCES
    if "kit" in f.relative_to(PACKAGE).parts
}


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"opwright.kit", "opwright.kit.register"}))
def test_each_floor_of_the_toolkit_imports_lower_ones(module: str) -> None:
    """Imports for annotations aside: what a lower floor is handed may be an operator."""
    part = part_of(module)
    assert part in FLOORS, f"{module} stands on no floor; add it to FLOORS"
    for name in imports_of(MODULES[module], types=False):
        if name.startswith("opwright.kit."):
            assert part_of(name) in (part, *FLOORS[part]), f"{module} imports {name}"
        if part in ("spec", "derive", "build"):
            assert not name.startswith("torch.library"), f"{module}: only dispatch knows torch.library"


KNOW_PRIVATE_NAMES = {"opwright.kit.private", "opwright.kit.private.dtensors", "opwright.kit.deploy.loader"}
PRIVATE = re.compile(r"\btorch(\.\w+)*\._(?!_)\w+|\bfrom torch\S*\._\w+|\bfrom torch\S* import _\w+")


@pytest.mark.parametrize("module", sorted(set(MODULES) - KNOW_PRIVATE_NAMES))
def test_private_names_of_pytorch_stand_in_one_place(module: str) -> None:
    """In code, that is: strings may speak of them. The loader is copied to where this package is not."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Import, ast.ImportFrom)):
            assert not PRIVATE.search(ast.unparse(node)), f"{module}: {ast.unparse(node)}"


def test_no_modules_of_the_toolkit_import_each_other_in_a_circle() -> None:
    arrows = {m: {n for n in imports_of(f, types=False) if n in MODULES and n != m} for m, f in MODULES.items()}
    while arrows:
        ground = {module for module, below in arrows.items() if not below & arrows.keys()}
        assert ground, f"a circle: {sorted(arrows)}"
        arrows = {module: below for module, below in arrows.items() if module not in ground}


@pytest.mark.parametrize("file", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(file: Path) -> None:
    part = file.relative_to(PACKAGE).parts[0]
    if part not in ARROWS:
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("opwright.kit.deprecated"):
                continue  # old names may be anybody's
            if name.partition(".")[0] == "opwright":
                below = name.partition(".")[2].partition(".")[0] or "opwright"
                assert below in ARROWS[part] | {"version"}, f"{file.name}: {name}"


def test_the_toolkit_knows_no_operator_by_name() -> None:
    names = [folder.parent.name for folder in (PACKAGE / "ops").glob("*/op.py")]
    assert names
    for file in (f for f in SOURCES if "kit" in f.parts):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        words |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not words & set(names), file


def test_an_operator_is_named_as_its_folder() -> None:
    for file in (PACKAGE / "ops").glob("*/op.py"):
        assert f"\ndef {file.parent.name}(" in file.read_text(encoding="utf-8")


BESIDE = [f for folder in ("tests", "release") for f in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("file", [*SOURCES, *BESIDE], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_one_thing_each(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400
    assert not re.search(r"utils?|helpers?|common|misc|manager", file.stem)


def test_every_public_name_has_a_docstring() -> None:
    import opwright as ow

    for name in set(ow.__all__) - {"__version__", "Number", "Like"}:
        assert getattr(ow, name).__doc__, name
    for attribute in vars(ow.Op):
        if not attribute.startswith("_"):
            assert getattr(ow.Op, attribute).__doc__, attribute


def test_everything_that_is_no_module_goes_into_the_wheel() -> None:
    """What setuptools is not told of is missing where the package is installed, and nobody notices in the clone."""
    (listed,) = re.findall(
        r"^\[tool.setuptools.package-data\]\nopwright = (\[.*\])$",
        (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    packed = {file for pattern in ast.literal_eval(listed) for file in PACKAGE.glob(pattern)}
    files = {f for f in PACKAGE.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
    assert PACKAGE / "ops" / "axpby" / "cpu.cpp" in files
    assert not files - packed - {*SOURCES}
