"""`opwright wheel`: from a folder of operators to anyone's machine."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from opwright.cli.choosing import broken, chosen
from opwright.kit.check.report import Report
from opwright.kit.check.run import run
from opwright.kit.ship import fill
from opwright.kit.ship.prove import NotProved, Proof, prove
from opwright.kit.ship.read import Wheel
from opwright.kit.ship.wheel import NoWheel, make

console = Console(stderr=True)


def wheel(
    folder: Annotated[Path, typer.Argument(help="A project with a pyproject.toml, or a folder of operators.")] = Path(
        "."
    ),
    to: Annotated[Path, typer.Option(help="Where the wheel goes.")] = Path("dist"),
    name: Annotated[str | None, typer.Option(help="The package that a bare folder becomes; the folder's name.")] = None,
    version: Annotated[str, typer.Option(help="The version that a bare folder gets.")] = "0.1.0",
    check: Annotated[bool, typer.Option(help="Check the operators first, and refuse what fails.")] = True,
    arch: Annotated[list[str] | None, typer.Option(help="GPUs to build for: 9.0, 8.0+PTX, …; may be repeated.")] = None,
    cuda: Annotated[
        bool | None, typer.Option(help="Whether to build for GPUs; by default where nvcc is at hand.")
    ] = None,
    natives: Annotated[
        list[str] | None, typer.Option(help="For opwright's own wheel: further interpreters, each with its torch.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--prove", help="torch==2.10.0, or an interpreter: install and check it there, without a compiler."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to prove it: cpu or cuda.")] = "cpu",
    keep: Annotated[Path | None, typer.Option(help="Keep the environments that --prove makes in this folder.")] = None,
    results: Annotated[Path | None, typer.Option(help="Add what --prove found to this file.")] = None,
    libraries: Annotated[
        bool, typer.Option("--libraries", help="No wheel: put the libraries into the package FOLDER, for other tools.")
    ] = False,
) -> None:
    """Make a wheel with the kernels in it, for every Python and torch 2.10 or newer; prove it before it leaves."""
    wishes: dict[str, Any] = {} if cuda is None else {"cuda": cuda}
    wishes |= {"arch": arch} if arch else {}
    wishes |= {"natives": natives} if natives else {}
    if libraries:
        _fill(folder, wishes)
        return
    if folder.suffix == ".whl":
        file = folder
        _describe(file)
    else:
        if check:
            _check(folder)
        try:
            file = make(folder, to, wishes, name=name, version=version, say=_say)
        except NoWheel as e:
            raise RuntimeError(f"no wheel was made\n{e}") from None
        _describe(file)
    proofs = []
    for each in where or ():
        try:
            proofs.append(prove(file, each, device=device, keep=keep, say=_say))
        except NotProved as e:
            raise RuntimeError(str(e)) from None
        _say(str(proofs[-1]))
    if results is not None:
        _keep(results, file, proofs)
    if not all(proof.holds for proof in proofs):
        raise typer.Exit(1)


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)


def _check(folder: Path) -> None:
    """Refuse operators that fail their check: what is shipped cannot be called back."""
    from opwright.kit import packages

    places = [folder]
    if (folder / "pyproject.toml").is_file():
        roots = [folder / "src", folder, *(p for p in sorted(folder.iterdir()) if p.is_dir() and p.name != "build")]
        inside = [p.parent for root in roots for p in sorted(root.glob("*/__init__.py"))]
        found = [p for p in dict.fromkeys(inside) if p.name != "tests" and packages.files_below(p)]
        places = [p for p in found if not (p.parent / "__init__.py").is_file()] or places
    operators = [op for place in places for op in chosen([str(place.resolve())])]
    if broken:
        raise RuntimeError("an operator cannot be loaded, and would be missing from the wheel; none is made")
    with console.status("checking …") as status:

        def progress(op: str, name: str, tried: str) -> None:
            status.update(escape(f"checking {op}: {name}, {tried}"))

        report: Report = run(operators, progress=progress)
    if not report.passed:
        lines = [f"{f.op} {f.property}: {f.message}  replay: {f.replay}" for f, _ in report.mistakes]
        raise RuntimeError(
            "an operator fails its check, so no wheel is made (--no-check makes one all the same):\n" + "\n".join(lines)
        )
    _say(f"checked: {report.summary}")


def _describe(file: Path) -> None:
    about = Wheel.read(file)
    shown = len(about.libraries) + len(about.own)
    _say(f"{file}: {file.stat().st_size / 1e6:.2f} MB, {shown} libraries")
    if not shown:
        _say("  no library is in it: sources alone, built where it is installed")
        return
    tied = sorted({str(row["torch"]) for row in about.libraries if row["abi"] == "aten"})
    floor = max((tuple(row["torch"]) for row in about.libraries if row["abi"] == "stable"), default=(2, 10))
    tied = tied or [r.partition("==")[2] for r in about.requires if r.startswith("torch==")]
    torch = f"torch {', '.join(tied)} alone" if tied else f"torch ≥ {floor[0]}.{floor[1]}"
    python = "any Python ≥ 3.10" if about.tag.startswith("py3-") else about.tag.partition("-")[0]
    _say(f"  runs with {torch}, {python}, on {about.tag.rpartition('-')[2]}")
    archs = sorted({arch for row in about.libraries for arch in row["arch"]})
    if archs:
        release = max(tuple(row["cuda"]) for row in about.libraries if row["cuda"])
        built = f"built with CUDA {release[0]}.{release[1]}, for drivers that know CUDA {release[0]}"
        _say(f"  GPUs: {', '.join(archs)}; {built}")
    for row in about.own:
        _say(
            f"  opwright's own {row['part']} for torch {row['torch']}" + (f", {row['python']}" if row["python"] else "")
        )


def _fill(folder: Path, wishes: dict[str, Any]) -> None:
    from _opwright_build import OF_THE_MACHINE, read_wishes  # which imports setuptools, where it is

    for name in OF_THE_MACHINE:
        os.environ.pop(name, None)

    folder = folder.resolve()
    for project in (folder.parent, folder.parent.parent):  # beside the package, or beside src
        wishes = {**(read_wishes(project / "pyproject.toml") or {}), **wishes}
    fill.choose_gpus(wishes)
    try:
        filled = fill.fill(folder, wishes)
    except fill.NotShipped as e:
        raise RuntimeError(str(e)) from None
    for line in filled.left:
        _say(f"left out {line}")
    _say(f"{len(filled.rows)} libraries are in {folder / '_opwright'}; tag the wheel {'-'.join(filled.tag)}")


def _keep(results: Path, file: Path, proofs: list[Proof]) -> None:
    known = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    digest, today = hashlib.sha256(file.read_bytes()).hexdigest(), datetime.date.today().isoformat()
    new = [{"wheel": file.name, "sha256": digest, "date": today, **proof.found} for proof in proofs]
    taken = {(row["wheel"], row["torch"], row["python"], row["device"]) for row in new}
    rows = [r for r in known if (r["wheel"], r["torch"], r["python"], r["device"]) not in taken] + new
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
