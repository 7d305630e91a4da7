"""Extensions that exist already: built from their sources as torch.utils.cpp_extension builds them, and loaded."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from opwright.kit import locks
from opwright.kit.build import cache, cuda, header, places, program, registered, strings, toolchain
from opwright.kit.build.foreign import refuse_foreign
from opwright.kit.build.library import found_or_built
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import BuildError
from opwright.kit.dispatch.sourced import beside
from opwright.kit.spec import words
from opwright.kit.spec.options import Options

_HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl")
_SOURCES = (".cpp", ".cc", ".cxx", ".c++", ".cp", ".C", ".CPP", ".c", ".cu")
"""What a compiler takes for a source. What it does not know, it hands to the linker, and says nothing."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Words = Sequence[str] | None

_loading = locks.renewed()
_loaded: set[str] = set()
"""The names under which something was loaded."""
_modules: dict[str, tuple[Any, cache.Entry]] = {}
"""What was loaded, by key: what it gave, and the library."""


def load_extension(
    sources: Paths,
    *,
    name: str,
    extra_cflags: Words = None,
    extra_cuda_cflags: Words = None,
    extra_ldflags: Words = None,
    extra_include_paths: Paths | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    is_python_module: bool = True,
) -> Any:
    """Build and load an extension from its sources, unchanged, as torch.utils.cpp_extension.load does, which has the
    same keywords: sources on `torch/extension.h` with PYBIND11_MODULE, or with TORCH_LIBRARY.

    Args:
        sources: C++ files, and CUDA files by their suffix `.cu`.
        name: the module's; `TORCH_EXTENSION_NAME` in the sources.
        extra_cflags, extra_cuda_cflags, extra_ldflags: flags for the C++ compiler, for nvcc and for the linker. Without
            `-O2` among them nothing is optimised, as there.
        extra_include_paths: folders with headers.
        build_directory: a folder that gets a copy of the library, under the extension's name.
        verbose: print the commands, and what the compilers say.
        with_cuda: whether CUDA's headers and libraries are used; by default, whether there is a `.cu` file.
        is_python_module: whether it is imported as a module, and given. If not, its registrations take effect, and the
            library's path is given.

    Built once for these sources, headers, flags, compiler and torch, and found from then on. The first build has
    `torch/extension.h` precompiled behind it, so that the next one is short; `OPWRIGHT_PCH=0` switches that off.

    >>> import opwright as ow, pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "answer.cpp"
    >>> _ = file.write_text('''
    ... #include <pybind11/pybind11.h>
    ... PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("answer", [] { return 42; }); }
    ... ''')
    >>> ow.load_extension(file, name="answer").answer()
    42
    """
    files = tuple(Path(f).expanduser().absolute() for f in _paths(name, "sources", sources))
    _refuse_name(name)
    if not files:
        raise ValueError(f"{name}: there is nothing to build; name its sources")
    missing = next((f for f in files if not f.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"{name}: there is no source {missing}")
    header = next((f for f in files if f.suffix in _HEADERS), None)
    if header is not None:
        raise ValueError(f"{name}: {header.name} is a header, and no source; name the folder it lies in, if need be")
    other = next((f for f in files if f.suffix not in _SOURCES), None)
    if other is not None:
        raise ValueError(
            f"{name}: {other.name} is no source of C++ or CUDA by its suffix, such as .cpp or .cu; objects and "
            f"archives are named in extra_ldflags"
        )
    on_gpu = any(f.suffix == ".cu" for f in files)
    if with_cuda is False and on_gpu:
        raise ValueError(f"{name}: with_cuda is False, and one of its sources is a .cu file")
    options = Options(
        abi="aten",
        cxxflags=_words(name, "extra_cflags", extra_cflags),
        nvccflags=_words(name, "extra_cuda_cflags", extra_cuda_cflags),
        ldflags=_words(name, "extra_ldflags", extra_ldflags),
        include=tuple(str(Path(p).expanduser().absolute()) for p in _paths(name, "include", extra_include_paths or ())),
        arch=_architectures(),
    )
    return _load(name, files, options, with_cuda or on_gpu, bool(verbose), is_python_module, build_directory)


def load_strings(
    cpp: list[str],
    cuda: list[str],
    functions: Mapping[str, str] | None,
    options: Options,
    folder: Path,
    frame: FrameType,
) -> dict[str, Any]:
    """Functions of strings on torch::Tensor, bound by pybind11 as torch.utils.cpp_extension.load_inline binds them.
    None: the strings bind them themselves, or register operators."""
    files: dict[str, str] = {}
    called: dict[str, str] = {}
    main = ["#include <torch/extension.h>"]
    for what, texts, lines, suffix in (
        ("cpp_sources", cpp, main, ".cpp"),
        ("cuda_sources", cuda, ["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>"], ".cu"),
    ):
        for i, text in enumerate(texts):
            file = f"{what}_{i}{suffix}.h"
            files[file], called[file] = text, f"{what}[{i}]" if len(texts) > 1 else what
            lines.append(f'#include "{file}"')
        if suffix == ".cu" and texts:
            files["inline.cu"] = "\n".join(lines) + "\n"
    if functions is not None:
        main += ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"]
        bind = 'm.def("{0}", torch::wrap_pybind_function({0}), {1});'
        main += [*(bind.format(f, _quoted(doc or f)) for f, doc in functions.items()), "}"]
    files["inline.cpp"] = "\n".join([*main, ""])
    place = strings.keep(files, frame, called)
    sources = tuple(place / file for file in files if file not in called)
    for source in sources:
        places.remember(str(source), files[source.name], "the lines that bind the functions", None)
    is_module = functions is not None or any("PYBIND11_MODULE" in text for text in (*cpp, *cuda))
    module = _load("inline_extension", sources, beside(options, folder, ()), bool(cuda), False, is_module, None)
    if functions is not None:
        return {name: getattr(module, name) for name in functions}
    return {n: v for n, v in vars(module).items() if not n.startswith("_")} if is_module else {}


def _quoted(text: str) -> str:
    """A string as C++ writes it."""
    return '"' + "".join(c if c.isalnum() or c in " .,;:()_" else f"\\{ord(c):03o}" for c in text if ord(c) < 128) + '"'


def _load(
    name: str,
    files: tuple[Path, ...],
    options: Options,
    on_gpu: bool,
    verbose: bool,
    is_python_module: bool,
    folder: str | os.PathLike[str] | None,
) -> Any:
    defines = (f"TORCH_EXTENSION_NAME={name}", "TORCH_API_INCLUDE_EXTENSION_H")
    given = options.with_environment()
    plan = Plan(name, files, given, defines, "cuda" if on_gpu else "cpu", extension=True, verbose=verbose)
    _refuse_foreign(plan, (*plan.sources, *plan.headers, *plan.more, *map(Path, given.include)))
    with _loading:
        known = _modules.get(plan.key)
        if known is None or is_python_module != isinstance(known[0], ModuleType):
            registered.refuse_named(plan)
            entry = _obtain(plan)
            _refuse_foreign(plan, [plan.located(each) for each in entry.about.get("more", ())])
            if on_gpu:
                cuda.refuse_foreign_code(name, entry.about["arch"])
            registered.opening(name, entry)
            try:
                loaded = _imported(name, entry) if is_python_module else _registered(name, entry)
            finally:
                registered.opened(name, entry)
            known = _modules[entry.about["key"]] = loaded, entry
        made, entry = known
        _loaded.add(name)
        if folder is not None:
            _copy(entry, Path(folder).expanduser().absolute(), name)
        if isinstance(made, ModuleType):
            _give_name(name, made)
        return made


def _refuse_foreign(plan: Plan, files: Iterable[Path]) -> None:
    for file in files:
        if not file.is_relative_to(toolchain.INCLUDE) and file.exists():
            refuse_foreign(file)


def _give_name(name: str, module: ModuleType) -> None:
    """Put a module where `import` and pickle look for it, unless somebody else's stands there."""
    there = sys.modules.get(name)
    if there is None or any(there is made for made, _ in _modules.values()):
        sys.modules[name] = module


def _obtain(plan: Plan) -> cache.Entry:
    root = cache.open_folder()
    there = cache.look_up(root, plan.key) is not None
    try:
        entry = found_or_built(plan)
    except BuildError as e:
        raise e.with_traceback(None) from None  # of compilers, which run in threads
    if not there and entry.library.is_relative_to(root):  # it was built just now
        header.start(plan)
    return entry


def _imported(name: str, entry: cache.Entry) -> ModuleType:
    called = name
    if name in _loaded:
        # pybind11 gives back the module that it has made under a name: another version is a module of a package.
        package = ModuleType(f"{name}_{entry.about['key'][:8]}")
        sys.modules[package.__name__] = package
        called = f"{package.__name__}.{name}"
    loader = importlib.machinery.ExtensionFileLoader(called, entry.to_load())
    spec = importlib.util.spec_from_file_location(called, entry.library, loader=loader)
    assert spec is not None
    with locks.loading:
        known = sys.modules.get(name)
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as e:
            cause = f" ({type(e.__cause__).__name__}: {e.__cause__})" if e.__cause__ else ""
            raise _explained(name, f"{e}{cause}") from e.__cause__
        finally:
            if known is not None:
                sys.modules[name] = known  # somebody else's stays where it is
        if called != name:
            sys.modules[called] = module
        elif known is None:
            sys.modules[name] = module
    return module


def _registered(name: str, entry: cache.Entry) -> str:
    try:
        with locks.loading:
            torch.ops.load_library(entry.to_load())
    except OSError as e:
        raise _explained(name, str(e.__cause__ or e)) from None
    return str(entry.library)


def _explained(name: str, said: str) -> BuildError:
    if "PyInit_" in said:
        return BuildError(
            f"{name}: its sources make no Python module of that name; write PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), "
            f"or load it with is_python_module=False"
        )
    kind = re.search(r'generic_type: type "(.+?)" is already registered', said)
    if kind:
        return BuildError(
            f"{name}: its class {kind[1]} stands in another version of it that this process has loaded; add "
            f"py::module_local() to py::class_, or start again"
        )
    undefined = undefined_in(said)
    if undefined is not None:
        what = f"nothing defines {undefined}"
        return BuildError(f"{name}: {what}; add the source that does, or name its library in extra_ldflags")
    return BuildError(f"{name}: it is built and cannot be loaded: {said}")


def undefined_in(said: str) -> str | None:
    """What a loader misses, as C++ writes it; None: something else is wrong."""
    found, reader = re.search(r"undefined symbol: (\w+)", said), shutil.which("c++filt")
    if found is None or reader is None:
        return None if found is None else found[1]
    return program.run([reader, found[1]]).stdout.strip() or found[1]


def _copy(entry: cache.Entry, folder: Path, name: str) -> None:
    """Put a copy of the library where somebody looks for it."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{name}: there is no build_directory {folder}")
    descriptor, part = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    with open(descriptor, "wb") as written:
        written.write(entry.library.read_bytes())
    os.chmod(part, 0o644)
    os.replace(part, folder / f"{name}.so")


def _architectures() -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"[;\s]+", os.environ.get("TORCH_CUDA_ARCH_LIST", ""))))


def _refuse_name(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ValueError(f"load_extension: the name becomes that of a module, such as 'lltm', got {name!r}")


def _paths(name: Any, word: str, given: Paths) -> list[str | os.PathLike[str]]:
    if isinstance(given, (str, os.PathLike)):
        return [given]
    return list(words.several(str(name), word, given, "paths"))


def _words(name: str, word: str, given: Words) -> tuple[str, ...]:
    """Flags as a shell reads them, to which torch.utils.cpp_extension hands them."""
    listed = () if given is None else words.several(name, word, given, "flags")
    try:
        return tuple(flag for each in listed for flag in shlex.split(str(each)))
    except ValueError as e:
        raise ValueError(f"{name}: {word} are read as a shell reads them, got {listed!r} ({e})") from None
