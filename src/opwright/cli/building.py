"""The commands around the build."""

from __future__ import annotations

import concurrent.futures
import os
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from opwright.cli.choosing import Names, chosen
from opwright.kit.build import cache as build_cache
from opwright.kit.build import compile, own, prebuilt, program, room, toolchain
from opwright.kit.build.compile import write_compile_commands
from opwright.kit.build.library import Library
from opwright.kit.build.trouble import BuildError, Refused, Unavailable, WrongKernel
from opwright.kit.dispatch import native, short

console = Console(stderr=True)


def build(
    names: Names = None,
    device: Annotated[str | None, typer.Option(help="Only kernels for this kind of device: cpu or cuda.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build even what the cache holds.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Bounds-check every accessor.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Compilers to run at once.")] = None,
    cxxflags: Annotated[str | None, typer.Option(help="Further flags for the compiler.")] = None,
    ldflags: Annotated[str | None, typer.Option(help="Further flags for the linker.")] = None,
    include: Annotated[list[Path] | None, typer.Option(help="Further folders with headers.")] = None,
    nvccflags: Annotated[str | None, typer.Option(help="Further flags for nvcc.")] = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="GPUs to build for: 9.0, 8.0+PTX, …; by default those of this machine.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Copy the libraries there too: another machine uses them by OPWRIGHT_PREBUILT.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the commands.")] = False,
    compile_commands: Annotated[Path | None, typer.Option(help="Write compile_commands.json there.")] = None,
) -> None:
    """Build ahead of use: the kernels of operators; without names also opwright's own C++, which makes calls fast."""
    settings = {
        "OPWRIGHT_DEBUG": "1" if debug else None,
        "OPWRIGHT_JOBS": None if jobs is None else str(jobs),
        "OPWRIGHT_CXXFLAGS": cxxflags,
        "OPWRIGHT_LDFLAGS": ldflags,
        "OPWRIGHT_INCLUDE": os.pathsep.join(str(p.resolve()) for p in include) if include else None,
        "OPWRIGHT_NVCCFLAGS": nvccflags,
        "OPWRIGHT_CUDA_ARCH": ";".join(arch) if arch else None,
        "OPWRIGHT_VERBOSE": "1" if verbose else None,
    }
    os.environ.update({name: value for name, value in settings.items() if value is not None})
    operators = [rung for op in chosen(names) for rung in op.ladder]
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"kernels are built for cpu or cuda, got {device!r}")
    # Without a GPU, kernels for one are built only when somebody says so.
    devices = {device} if device else {"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"}
    kernels = [(op, k) for op in operators for k in op.kernels if k.library and k.device in devices]
    libraries: dict[Library, None] = dict.fromkeys(k.library for _, k in kernels if k.library)
    if compile_commands is not None:
        plans = [*(library.plan() for library in libraries), own.native()]
        plans += [plan for plan in [own.call()] if plan is not None]
        console.print(f"wrote {write_compile_commands(plans, compile_commands)}", highlight=False, markup=False)
    start = time.perf_counter()
    too_new = own.too_new()
    if names:
        missing = native.available()
        if missing is not None and too_new is None:
            console.print(
                f"note: {missing}; until then gradients are recorded in Python", highlight=False, markup=False
            )
    elif too_new is not None:
        console.print(f"opwright's own C++ is left out: {too_new}", highlight=False, soft_wrap=True, markup=False)
    with compile.hurried(toolchain.jobs()) as pool:
        waiting: dict[concurrent.futures.Future[Any], Library | None] = {}
        if not names and too_new is None:  # they take longest
            waiting |= {pool.submit(own.build, force): None for own in (native, short)}
            waiting[pool.submit(compile.build, own.guard(), force)] = None
        waiting |= {pool.submit(library.compile, force): library for library in libraries}
        done = concurrent.futures.as_completed(waiting)
        failed: dict[Library | None, list[str]] = {}
        try:
            for future in track(done, "building", len(waiting), console=console, transient=True):
                try:
                    future.result()
                except (BuildError, Unavailable) as e:
                    failed.setdefault(waiting[future], []).append(str(e))  # the others are built all the same
        except KeyboardInterrupt:
            program.stop()
            concurrent.futures.wait([f for f in waiting if not f.cancel()], 2)
            built = sum(f.done() and not f.cancelled() and f.exception() is None for f in waiting)
            console.print(f"stopped; {built} of {len(waiting)} libraries are built", highlight=False)
            raise typer.Exit(130) from None
    unbuilt = set(failed)
    for library in libraries:
        if library not in unbuilt:
            try:
                library.load(again=True)
            except (BuildError, Refused) as e:
                failed[library] = [str(e) if isinstance(e, BuildError) else f"{library.file}: {e}"]
                unbuilt.add(library)
            if library.trouble:
                failed[library] = [f"{library.file}: {library.trouble}"]
    for op, kernel in kernels:
        if kernel.library and kernel.library not in unbuilt:
            try:
                kernel.refuse_other_types(op)  # also where it cannot be loaded
                if not kernel.library.trouble:
                    kernel.ready(op)
            except WrongKernel as e:
                failed.setdefault(kernel.library, []).append(str(e))
    if to is not None:
        for library in libraries:
            if library not in failed:
                plan = library.plan()
                prebuilt.write(plan, library.find(plan), to)
    took = time.perf_counter() - start
    for line in dict.fromkeys(line for lines in failed.values() for line in lines):
        console.print(line, style="red", highlight=False, soft_wrap=True, markup=False)
    built = sum(library not in failed for library in libraries)
    console.print(f"{built} of {len(libraries)} libraries are built ({took:.1f} s)", highlight=False)
    if failed:
        raise typer.Exit(1)


def cache(
    prune: Annotated[
        bool, typer.Option("--prune", help="Take away libraries that nobody used of late, and what dead builds left.")
    ] = False,
    days: Annotated[float, typer.Option(help="How many days are of late.")] = 30.0,
) -> None:
    """Show what is in the cache, or prune it."""
    out = Console()
    root = build_cache.folder()
    if prune:
        limit = time.time() - days * 86400
        freed = build_cache.prune(root, lambda entry: entry.used > limit)
        out.print(f"freed {room.say(freed)} in {root}", highlight=False, soft_wrap=True, markup=False)
        return
    table = Table("library", "size", "built in", "used", "for torch", "for GPUs")
    entries = build_cache.entries(root)
    for entry in entries:
        about = entry.about
        used = (time.time() - entry.used) / build_cache.DAY
        version = str(about.get("torch", "?")).partition(" ")[0]
        size, gpus = f"{entry.size / 1e6:.2f} MB", " ".join(about.get("arch", ())) or "-"
        name, seconds = (str(about.get(key, "?")) for key in ("name", "seconds"))  # another version may keep others
        table.add_row(name, size, f"{seconds} s", f"{used:.1f} d ago", version, gpus)
    out.print(table)
    said = f"{len(entries)} libraries in {root}, {room.usage(entries)} (OPWRIGHT_CACHE_SIZE)"
    out.print(said, highlight=False, soft_wrap=True, markup=False)
