"""Running the compiler: sources to objects, objects to a library."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from opwright.kit import locks
from opwright.kit.build import bound, cache, cuda, depends, header, own, program, room, toolchain, trial
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import BuildError, Unavailable, explain_failure

KERNEL_H = (toolchain.INCLUDE / "opwright" / "kernel.h").resolve()


@functools.cache
def _slots() -> threading.BoundedSemaphore:
    """For compilers that run at once, whatever asks for them."""
    return threading.BoundedSemaphore(toolchain.jobs())


locks.in_child(_slots.cache_clear)  # those of the parent's compilers would never come back


def build(plan: Plan, force: bool = False, hint: str = "") -> cache.Entry:
    """The plan's library, from the cache or compiled now with a line of progress, which ends in the hint."""
    root = cache.open_folder()
    if force:
        cache.refuse_read_only(root)
    built = []

    def make(private: Path, plan: Plan) -> dict[str, Any]:
        room.limit()  # a size that cannot be read is told before the work is done
        built.append(_compile(plan, root, private, hint))
        return built[-1]

    entry = _settled(plan, lambda plan: cache.obtain(root, plan.key, plan.name, partial(make, plan=plan), anew=force))
    if built:
        room.make_room(root, lambda: {entry.about["key"], *own.keys()})
    return entry


class _Again(Exception):
    """What was built is not what its key says: build this in its place."""

    def __init__(self, plan: Plan, said: str = "") -> None:
        self.plan, self.said = plan, said


TRIES = 4


def _settled(plan: Plan, build: Callable[[Plan], cache.Entry]) -> cache.Entry:
    """Build until nothing is saved meanwhile, and the compiler reads nothing that was not known before."""
    for _ in range(TRIES):
        try:
            return build(plan)
        except _Again as again:
            plan, said = again.plan, again.said
            if said:
                print(f"opwright: {said} was saved while it was built, building it again", file=sys.stderr, flush=True)
    raise BuildError(f"{plan.name}: {said or 'a header'} changes whenever it is built; save it, and try again")


def _refuse_changed(plan: Plan, since: int) -> None:
    """Raise _Again where a file is not as it was when the key was made, or was written to since then."""
    # The clock of a file system may be ahead of ours: the second time, the content says it alone.
    strict = not plan.read.again
    file = plan.read.changed(plan.files, since if strict else None)
    if file is not None:
        raise _Again(plan.anew(), file.name)


@contextlib.contextmanager
def hurried(jobs: int) -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """A pool that starts nothing more once something went wrong. An interrupt ends the compilers that run, too."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            yield pool
        except BaseException as e:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(e, KeyboardInterrupt):
                program.stop()
            raise


def _compile(plan: Plan, root: Path, private: Path, hint: str) -> dict[str, Any]:
    names = ", ".join(s.name for s in plan.sources)
    on_gpu = plan.device == "cuda"
    if on_gpu:
        cuda.say_versions(plan.options.abi == "stable")
    what = f"{names} for {', '.join(plan.arch)}" if plan.arch else names
    print(f"opwright: building {plan.name} ({what}) …", file=sys.stderr, flush=True)
    start = time.perf_counter()
    log_file = root / "logs" / f"{plan.key}.log"
    log: list[str] = []
    since = time.time_ns()
    more: dict[Path, None] = {}

    def one(index: int) -> Path:
        if plan.extension:
            of = plan.of(plan.sources[index])
            try:
                made = _object(of, root, log, log_file)
            except _Again as again:
                raise _Again(plan.anew(), again.said) from None
            more.update(dict.fromkeys(map(of.located, made.about["more"])))
            return made.library
        # Numbered: every folder has a cpu.cpp, and two sources of one plan may share a name.
        output = private / f"{index}.o"
        command = [*_compile_command(plan, plan.sources[index]), "-MD", "-MF", str(private / f"{index}.d")]
        command += ["-DOPWRIGHT_APART"] if shares else []
        _run([*command, "-c", str(plan.sources[index]), "-o", str(output)], plan, log, log_file, private)
        return output

    shares = plan.device == "cpu" and plan.options.abi == "stable" and KERNEL_H in plan.headers
    with hurried(min(toolchain.jobs(), len(plan.sources) + 2)) as pool:
        compiling = [pool.submit(one, i) for i in range(len(plan.sources))]
        compiling += [pool.submit(_common, plan, root, log, log_file)] if shares else []
        # Not where a flag may ask for every symbol to be found.
        stands_in = sys.platform == "linux" and not plan.options.ldflags
        standing_in = [pool.submit(_stand_in, plan, log, log_file, private)] if stands_in else []
        objects, libraries = ([future.result() for future in each] for each in (compiling, standing_in))
    if on_gpu and plan.options.rdc:
        devices = [o for o, s in zip(objects, plan.sources, strict=True) if s.suffix == ".cu"]
        objects.append(private / "device.o")
        command = [cuda.nvcc().command, "-dlink", "-rdc=true", *cuda.gencode(plan.arch), "-Xcompiler", "-fPIC"]
        _run([*command, *map(str, devices), "-o", str(objects[-1])], plan, log, log_file, private)
    output = private / cache.LIBRARY
    _run([*_link_command(plan, objects, libraries), "-o", str(output)], plan, log, log_file, private)
    if not plan.extension:  # else each object was asked
        _refuse_changed(plan, since)
    more |= dict.fromkeys(_unseen(plan, private))
    made = _with(plan, more)
    if made.key != plan.key and any("{key}" in d for d in plan.defines):
        raise _Again(made)  # its key stands in what was compiled
    took = time.perf_counter() - start
    print(f"opwright: built {plan.name} in {took:.1f} s{hint}", file=sys.stderr, flush=True)
    about = {
        "rekeyed": made.key,
        "key": made.key,
        "name": plan.name,
        "sources": [str(s) for s in plan.sources],
        "flags": [*plan.flags, *plan.filled_defines()],
        "seconds": round(took, 3),
        "torch": toolchain.torch_identity(),
        "more": _named(made),
        "kernels": bound.read(output),
    }
    if plan.extension:
        about |= {"registers": trial.registrations(plan.name, output)}
    if on_gpu:
        about |= {"arch": list(plan.arch), "cuda": list(cuda.nvcc().release), "nvccflags": plan.nvccflags}
    return about


def _object(plan: Plan, root: Path, log: list[str], log_file: Path) -> cache.Entry:
    """The object of an extension's source. It is kept: whoever edits another source does not wait for this one."""

    def make(private: Path) -> dict[str, Any]:
        start, since = time.perf_counter(), time.time_ns()
        source, output = plan.sources[0], private / cache.LIBRARY
        command = [*_compile_command(plan, source), "-MD", "-MF", str(private / "0.d"), "-c", str(source)]
        first = header.flags(plan, root)
        try:
            _run([*command, *first, "-o", str(output)], plan, log, log_file, private)
        except (BuildError, Unavailable):
            if not first or not header.blamed(plan, root, log[-1]):
                raise
            _run([*command, "-o", str(output)], plan, log, log_file, private)
        took = round(time.perf_counter() - start, 3)
        _refuse_changed(plan, since)
        made = _with(plan, _unseen(plan, private))
        about: dict[str, Any] = {"key": made.key, "name": plan.name, "sources": [str(source)]}
        about |= {"flags": list(plan.flags)}
        about |= {"seconds": took, "torch": toolchain.torch_identity(), "more": _named(made)}
        return about | {"rekeyed": f"{made.key}o"}

    return cache.obtain(root, f"{plan.key}o", plan.name, make)


def _compile_command(plan: Plan, source: Path) -> list[str]:
    """The compiler and its flags for one source."""
    compiler = toolchain.compiler().command
    includes = [f"-I{p}" for p in plan.includes]
    includes += [part for p in toolchain.torch_includes() for part in ("-isystem", str(p))]
    if plan.uses_python:
        includes += ["-isystem", str(toolchain.python_includes())]
    if source.suffix == ".cu":
        nvcc = [
            cuda.nvcc().command,
            "-ccbin",
            compiler[0],
            *cuda.gencode(plan.arch),
            "--threads",
            str(toolchain.jobs()),
        ]
        behind = [part for flag in plan.for_gcc() if plan.extension for part in ("-Xcompiler", flag)]
        return [*nvcc, *behind, *plan.nvccflags, *plan.filled_defines(), *includes]
    if plan.device == "cuda":
        includes += ["-isystem", str(cuda.nvcc().home / "include")]
    return [*compiler, *plan.for_gcc(), *plan.flags, *plan.filled_defines(), *includes]


def _common(plan: Plan, root: Path, log: list[str], log_file: Path) -> Path:
    """The object with what kernels share of kernel.h. With the same flags it is the same, and kept."""
    options = replace(plan.options, sources=(), ldflags=())
    return _kept(Plan("kernel.h", (KERNEL_H.parent / "common.cpp",), options), plan, root, log, log_file)


def build_object(plan: Plan) -> Path:
    """The object of a plan with one source, from the cache or compiled now, to be linked into libraries by its path."""
    root = cache.open_folder()
    return _kept(plan, plan, root, [], root / "logs" / f"{plan.key}.log")


def _kept(plan: Plan, blamed: Plan, root: Path, log: list[str], log_file: Path) -> Path:
    def make(private: Path) -> dict[str, Any]:
        start = time.perf_counter()
        source, output = str(plan.sources[0]), str(private / cache.LIBRARY)
        _run([*_compile_command(plan, plan.sources[0]), "-c", source, "-o", output], blamed, log, log_file, private)
        took = round(time.perf_counter() - start, 3)
        about = {"key": plan.key, "name": plan.name, "sources": [source], "flags": list(plan.flags)}
        return about | {"seconds": took, "torch": toolchain.torch_identity()}

    return cache.obtain(root, plan.key, plan.name, make).library


def _stand_in(plan: Plan, log: list[str], log_file: Path, private: Path) -> Path:
    """Put an empty library by the name of PyTorch's largest into the private folder. Linking against it writes the same
    name into the result, and reads no hundreds of megabytes of symbols."""
    source, library = private / "empty.c", private / "libtorch_cpu.so"
    source.touch()
    flags = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{library.name}", "-x", "c", str(source)]
    _run([*toolchain.compiler().command, *flags, "-o", str(library)], plan, log, log_file, private)
    return private


def _link_command(plan: Plan, objects: list[Path], before: list[Path]) -> list[str]:
    folders = [f"-L{p}" for p in (*before, toolchain.torch_libraries())]
    link = [*toolchain.compiler().command, "-shared", *map(str, objects), *folders]
    link += [f"-Wl,-soname,{plan.soname}"] if plan.soname else []
    link += [f"-Wl,--exclude-libs,{plan.hidden_archives}"]
    on_gpu = plan.device == "cuda"
    if on_gpu:
        # CUDA's runtime goes into the library: another torch may bring another one.
        link += [f"-L{p}" for p in cuda.nvcc().libraries]
        link += [*(["-lcudadevrt"] if plan.options.rdc else []), "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    # libtorch_cpu by name: symbols found through libtorch alone are missing in other processes.
    torch = ["-ltorch_cpu"]
    if plan.soname:
        torch += ["-lc10"]  # all that it needs, and all that programs without Python may have beside them
    elif plan.options.abi != "stable":
        torch += ["-ltorch", "-lc10"]
        more = ("c10_cuda", "torch_cuda") if plan.extension and on_gpu else ()
        torch += [f"-l{name}" for name in more if (toolchain.torch_libraries() / f"lib{name}.so").exists()]
    else:
        # PyTorch's libraries carry parts of libstdc++ and give them away without versions. What is taken from there is
        # missing under a torch that was built otherwise, and the library does not say that it needs it.
        link += ["-Wl,--as-needed", "-lstdc++"] if toolchain.compiler().is_gcc else []
        torch += ["-ltorch"] if plan.device == "cuda" else []  # it brings libtorch_cuda, where torch has that
    torch += ["-ltorch_python"] if plan.uses_python else []
    return [*link, "-Wl,--no-as-needed", *torch, *plan.options.ldflags]


def _run(command: list[str], plan: Plan, log: list[str], log_file: Path, private: Path) -> None:
    # A compiler's messages are read by machine, and its scratch files stay in the private folder.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(private)}
    verbose = plan.verbose or os.environ.get("OPWRIGHT_VERBOSE", "") not in ("", "0")
    if verbose:
        print(" ".join(command), file=sys.stderr, flush=True)
    try:
        with _slots():
            done = program.run(command, env=environment, cwd=private)
    except OSError as e:
        raise Unavailable(
            f"{plan.name}: the compiler {command[0]} does not start ({e.strerror}); set CXX, or NVCC"
        ) from None
    said = done.stdout + done.stderr
    if verbose and said:
        print(said, file=sys.stderr, flush=True)
    log.append(" ".join(command) + "\n" + said)
    if done.returncode:
        try:
            log_file.write_text("\n".join(log), encoding="utf-8")
        except OSError:
            raise explain_failure(plan.name, done.returncode, said, None) from None
        raise explain_failure(plan.name, done.returncode, said, log_file)


def _unseen(plan: Plan, private: Path) -> list[Path]:
    """Headers that the compiler read and the plan does not know: their names were made by macros, for one."""
    besides = [cuda.nvcc().home] if plan.device == "cuda" else []
    besides += [toolchain.python_includes()] if plan.uses_python else []
    found = [file for each in private.glob("*.d") for file in depends.read_by_compiler(each, besides)]
    return [file for file in dict.fromkeys(found) if file not in plan.files]


def _with(plan: Plan, more: Iterable[Path]) -> Plan:
    """The plan as the compiler found it to be."""
    return plan.remember(more) if set(more) - set(plan.files) else plan


def _named(plan: Plan) -> dict[str, str]:
    """Headers that only the compiler found, as a copy of the project has them too, and what they hold."""
    return {plan.spelled(header): plan.read.digest(header) for header in plan.more}


def write_compile_commands(plans: list[Plan], folder: Path) -> Path:
    """compile_commands.json for editors."""
    import json

    rows = []
    for plan in plans:
        for source in plan.sources:
            command = [*_compile_command(plan, source), "-c", str(source)]
            rows.append({"directory": str(source.parent), "file": str(source), "arguments": command})
    file = folder / "compile_commands.json"
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return file
