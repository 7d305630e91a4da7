"""The commands that measure, and show what was measured."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import opwright as ow
from opwright.cli import writing
from opwright.cli.choosing import Names, chosen, library_operator
from opwright.cli.measured import show
from opwright.kit.bench import machine, places
from opwright.kit.bench import results as stored
from opwright.kit.bench.cases import families
from opwright.kit.bench.compare import confirmed
from opwright.kit.bench.run import Asked, build_errors, run

console = Console(stderr=True)


def bench(
    names: Names = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; all there are if not given.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Such as bfloat16; may be given several times.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The first case of each operator at one size alone.")] = False,
    without: Annotated[list[str] | None, typer.Option(help="A variant to leave out, such as compiled.")] = None,
    seconds: Annotated[float, typer.Option(help="For each pass of a case, all variants together.")] = 1.0,
    limit: Annotated[float, typer.Option(min=1, help="Seconds after which a case is given up.")] = 180.0,
    renew_limits: Annotated[
        bool, typer.Option("--renew-limits", help="Measure the machine's own limits again, on a quiet machine.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write this run's JSON; - is stdout.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="The file that keeps results, or its folder; by default benchmarks/results.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="BASE", help="Say what got slower or uses more memory since this results file."),
    ] = None,
) -> None:
    """Measure operators: verified, then timed in turns with the eager and the compiled reference and their rivals."""
    writing.refuse_unwritable(json_file)  # before an hour of measuring
    operators = measurable(names)
    asked = Asked(
        operators,
        paths=[n for n in names or () if library_operator(n) is None and Path(n).exists()],
        dtypes=_dtypes(dtype),
        devices=_devices(device),
        sweep=not quick,
        families=1 if quick else None,
        seconds=seconds,
        limit=limit,
        without=_without(without, operators),
        renew_limits=renew_limits,
    )
    base = None if compare is None else stored.read(compare)
    found, file = (stored.Results.here(), Path()) if base is not None else _opened(results)
    _refuse_namesakes(operators, base or found, compare or file)
    unbuilt = _unbuilt(asked)
    asked = replace(asked, operators=[op for op in operators if op not in unbuilt])
    if unbuilt and not asked.operators:
        raise typer.Exit(1)
    if base is not None and compare is not None:
        _gate(asked, base, compare, json_file, dtype)
        raise typer.Exit(1 if unbuilt else 0)
    if machine.busy({"load": machine.load()}, found.machine):
        note = f"note: this machine is busy (load {machine.load():g}); ratios bear that, times do not"
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    with _stopping(found, file):
        number = measure(asked, found, file)
    mine = _of_run(found, number)
    writing.write(mine, json_file, indent=1)
    out = console if json_file == "-" else Console()
    show(mine["rows"], out)
    _advise(mine["rows"], out)
    if any((r.get("forward_fraction") or 0) > 1.05 for r in mine["rows"]):
        note = (
            "note: some beat the machine's limit, so that was measured in a busy moment; --renew-limits on a quiet one"
        )
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    console.print(f"kept in {file}", highlight=False, soft_wrap=True, markup=False)
    if unbuilt:
        raise typer.Exit(1)


def _unbuilt(asked: Asked) -> list[ow.Op[..., Any]]:
    """Build what will be measured, here, where its progress is seen; say what does not compile, which nobody can
    measure."""
    found: list[ow.Op[..., Any]] = []
    for op in asked.operators:
        troubles = build_errors(op, asked.devices)
        for text in troubles:
            console.print(
                f"{op.name} is not measured: {text}", style="red", highlight=False, soft_wrap=True, markup=False
            )
        found += [op] if troubles else []
    return found


def _advise(rows: Sequence[dict[str, Any]], out: Console) -> None:
    """Say what to do where an operator is slower, as the report does."""
    from opwright.kit.bench.report.standing import advice

    for name in dict.fromkeys(row["op"] for row in rows):
        for text in advice([row for row in rows if row["op"] == name]):
            out.print(f"{name}: {text[0].lower()}{text[1:]}", highlight=False, soft_wrap=True, markup=False)


def _gate(asked: Asked, base: stored.Results, file: Path, json_file: str | None, dtypes: Sequence[str] | None) -> None:
    """Measure what BASE holds, say what got worse or is there no more, and exit with 1 if anything is."""
    names = {op.name for op in asked.operators}
    rows = [r for r in base.rows if r["op"] in names and (asked.sweep or r.get("stands"))]
    cases = {tuple(r[k] for k in stored.KEY[:-1]) for r in rows}
    only = sorted(c for c in cases if c[3] in asked.devices and (not dtypes or c[2] in dtypes))
    if not only:
        raise ValueError(f"{file}: holds no results of {', '.join(sorted(names))} for {', '.join(asked.devices)}")
    asked = replace(asked, dtypes=sorted({c[2] for c in only}), sweep=True, families=None)
    found = stored.Results.here()
    if machine.name(found.machine) != machine.name(base.machine):
        console.print(
            f"note: {file} is of another machine, {machine.name(base.machine)}; ratios travel badly", style="yellow"
        )

    def again(cases: Sequence[tuple[str, str, str, str]]) -> list[dict[str, Any]]:
        number = measure(replace(asked, only=cases), found, None)
        return [r for r in found.rows if r["run"] == number]

    first = again(only)
    worse = confirmed(base, first, again, without=asked.without)
    writing.write(_of_run(found, None), json_file, indent=1)
    measured = {tuple(r[k] for k in stored.KEY[:-1]) for r in first}
    gone = [" ".join(case) for case in only if case not in measured]
    for text in [*map(str, worse), *(f"{case}: is there no more, and {file} has it" for case in gone)]:
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    if worse or gone:
        raise typer.Exit(1)
    console.print(f"nothing got slower or uses more memory in {len(measured)} cases", highlight=False)


def _refuse_namesakes(operators: Sequence[ow.Op[..., Any]], found: stored.Results, file: Path) -> None:
    """Results go by an operator's name alone."""
    known = {row["op"]: row["qualname"] for row in found.rows if "qualname" in row}
    for op in operators:
        other = known.get(op.name, op.qualname)
        if other != op.qualname:
            raise ValueError(
                f"{file}: holds results of {other}, not of {op.qualname}; name another file with --results"
            )


def measurable(names: list[str] | None) -> list[ow.Op[..., Any]]:
    """The operators to measure: those asked for, or all that have something to be measured on."""
    found = chosen(names)
    for op in found:
        if op.home is not op:
            raise ValueError(f"{op.name} belongs to {op.home.name}, and is measured with it: name {op.home.name}")
    ready = [op for op in found if families(op)]
    lacking = [f"{op.name}: {_nothing_to_measure(op)}" for op in found if op not in ready] if names else []
    if names and not ready:
        raise ValueError("\n".join(lacking))
    for text in lacking:
        console.print(f"not measured: {text}", style="yellow", highlight=False, soft_wrap=True, markup=False)
    return ready


def _nothing_to_measure(op: ow.Op[..., Any]) -> str:
    if any(p.mutated for p in op.signature.parameters):
        return "it works in place, and what its samples hold changes with each call; declare cases with @op.bench"
    return "there is nothing to measure on; declare cases with @op.bench, or samples"


def measure(asked: Asked, found: stored.Results, file: Path | None) -> int:
    """Measure with a progress bar; every case is in the file as soon as it is done."""
    total = sum(len(job.cases) for job in asked.jobs())
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    seen: set[str] = set()
    with bar:
        task = bar.add_task("starting", total=total)

        def tell(text: str) -> None:
            bar.update(task, description=text)
            case = ":".join(text.split(":")[:2])
            if not console.is_terminal and case not in seen:  # a log has no bar
                seen.add(case)
                console.print(f"measuring {case}", highlight=False, markup=False, soft_wrap=True)

        done: set[tuple[str, ...]] = set()

        def keep() -> None:
            if file is not None:
                found.save(file)
            done.update(tuple(r[k] for k in stored.KEY[:-1]) for r in found.rows if r["run"] == len(found.runs) - 1)
            bar.update(task, completed=len(done))

        return run(asked, found, tell=tell, keep=keep)


@contextlib.contextmanager
def _stopping(found: stored.Results, file: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if found.rows:
            found.save(file)
        text = f"\nstopped; what was measured so far is in {file}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None


def _opened(place: Path | None) -> tuple[stored.Results, Path]:
    """The results to add to, and their file."""
    found = stored.Results.here()
    file = places.file_in(place or places.folder())
    places.prepare(file)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)  # an error here comes before an hour of measuring
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file.parent))
        return found, file
    kept = stored.read(file)
    if machine.name(kept.machine) != machine.name(found.machine):
        raise ValueError(
            f"{file}: holds results of another machine, {machine.name(kept.machine)}; name another file with --results"
        )
    return kept, file


def _of_run(found: stored.Results, number: int | None) -> dict[str, Any]:
    alone = stored.Results(found.machine)
    alone.limits, alone.runs = found.limits, found.runs
    alone.rows = [r for r in found.rows if number is None or r["run"] == number]
    names = {r["op"] for r in alone.rows}
    alone.operators = {name: about for name, about in found.operators.items() if name in names}
    return alone.to_json()


def _dtypes(asked: list[str] | None) -> list[str]:
    known = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
    for name in asked or ():
        if name not in known:
            raise ValueError(f"--dtype must be one of {', '.join(known)}, got {name!r}")
    return asked or ["float32"]


def _without(asked: list[str] | None, operators: Sequence[ow.Op[..., Any]]) -> list[str]:
    if "eager" in (asked or ()):
        raise ValueError("--without eager: everything is compared with it")
    known = dict.fromkeys(["compiled", "opwright", *(v.name for op in operators for v in op.spec.variants)])
    for name in asked or ():
        if name not in known:
            raise ValueError(f"--without {name}: there is no such variant; there are {', '.join(known)}")
    return asked or []


def _devices(asked: str | None) -> list[str]:
    if asked is None:
        return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if asked.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, got {asked!r}")
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch sees no CUDA device here; `opwright doctor` says more")
    return [asked]
