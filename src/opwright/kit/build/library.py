"""A source file's kernels: built and loaded once, when first needed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from opwright.kit import locks
from opwright.kit.build import cache, compile, cuda, own, prebuilt, shipped, toolchain
from opwright.kit.build.bound import Bound, refuse_twice
from opwright.kit.build.foreign import refuse_foreign
from opwright.kit.build.plan import Plan
from opwright.kit.build.strings import is_kept
from opwright.kit.build.trouble import BuildError, NoCache, Refused, Unavailable
from opwright.kit.spec.options import Options


class Library:
    """The library of one source file for one namespace. Operators that name the same file share it."""

    def __init__(self, file: Path, namespace: str, options: Options, device: str = "cpu") -> None:
        self.file, self.namespace, self.options, self.device = file, namespace, options, device
        self.key: str | None = None
        """The key of what is loaded; None before."""
        self.loaded: Path | None = None
        """The file that is loaded."""
        self.offered = 0
        """Where it lists its kernels for opwright's own C++; 0: nowhere."""
        self.trouble: str | None = None
        """Why it could not be had, once that was tried."""
        self.bound: list[Bound] = []
        """The kernels in it, once it is found; all but those that are bound without kernel.h."""
        self.edited = False
        """Whether its sources may have changed since they were loaded: an operator has been defined with it again."""
        self.guarded = False
        """Whether to look whose its sources are: those of a folder that was loaded from anywhere on disk."""
        self._failed = ("", "")
        """The key of what does not compile, and what the compiler said of it."""
        self._lock = locks.renewed()

    def look_again(self) -> None:
        """An operator is defined with it: its sources may have changed since they were tried."""
        self.edited = self.key is not None
        self._failed = ("", "")

    def plan(self) -> Plan:
        """What building it takes, read from the sources as they are now."""
        more = tuple(self.file.parent / s for s in self.options.sources)
        defines = (f"OPWRIGHT_NAMESPACE={self.namespace}", "OPWRIGHT_KEY={key}")
        return Plan(
            # What a string's folder is called says nothing.
            name=self.file.name if is_kept(self.file) else f"{self.file.parent.name}/{self.file.name}",
            sources=(self.file, *more),
            options=self.options.with_environment(),
            defines=(*defines, "OPWRIGHT_CUDA") if self.device == "cuda" else defines,
            device=self.device,
        )

    def load(self, *, again: bool = False, force: bool = False) -> str | None:
        """Build it if need be, load it, and give its key; None when this machine cannot, after a warning.

        A source that does not compile is an error in the source: BuildError, again at each call until it is fixed.
        """
        with self._lock:  # two threads that need it first need it once
            if (self.key is None and self.trouble is None) or again or self.edited:
                try:
                    if again:
                        self._failed = ("", "")
                    self._load(force)
                    self.edited = False
                except Unavailable as e:
                    # What changed under our hands may stay as it is the next time.
                    self.trouble = None if isinstance(e, cache.Changed) else str(e)
                    if not isinstance(e, NoCache) or _first(str(e)):
                        said = f"opwright: {self.file}: the reference runs, since {e}"
                        warnings.warn(said, RuntimeWarning, stacklevel=2)
            return self.key

    def require(self) -> str:
        """What `load` does, for those who have no reference to fall back on: Unavailable where it cannot be had."""
        with self._lock:
            if self.key is None or self.edited:
                self._load(False)
                self.edited = False
            assert self.key is not None
            return self.key

    def compile(self, force: bool = False) -> None:
        """Build it if need be, without loading it. What stands in the way is told by `load`."""
        with contextlib.suppress(Unavailable, Refused):
            self.find(self.plan(), force)

    def cached(self) -> bool:
        """Whether it is built as its sources are now: cached, prebuilt or shipped. What it binds is known then."""
        try:
            plan = self.plan()
            made = self._shipped(plan)[0] or _made_elsewhere(plan) or cache.look_up(cache.open_folder(), plan.key)
        except (Unavailable, Refused, OSError):
            return False
        if made is not None:
            self.bound = [Bound(*row) for row in made.about.get("kernels", ())]
        return made is not None

    def failed(self) -> str | None:
        """What the compiler said of its sources as they are now, if it was asked; None: nothing against them."""
        key, said = self._failed
        with contextlib.suppress(OSError):  # a source that is there no more
            return said if key and key == self.plan().key else None
        return None

    def _load(self, force: bool) -> None:
        plan = self.plan()
        if self._failed[0] and self._failed[0] == plan.key:
            raise BuildError(self._failed[1])
        try:
            try:
                key = self._load_entry(plan, self.find(plan, force, _hint))
            except cache.Changed:
                key = self._load_entry(plan, self.find(plan, False, _hint))
        except BuildError as e:
            self._failed = plan.key, str(e)
            raise
        self.key, self.trouble = key, None

    def _load_entry(self, plan: Plan, entry: cache.Entry) -> str:
        self.bound = [Bound(*row) for row in entry.about.get("kernels", ())]
        refuse_twice(plan.name, self.bound)
        if self.device == "cuda":
            cuda.refuse_foreign_code(plan.name, entry.about["arch"])
        key = str(entry.about["key"])[:16]
        if key != self.key:
            try:
                with locks.loading:
                    torch.ops.load_library(entry.to_load())
                    self.offered = _offered(entry.to_load())
            except OSError as e:
                raise Unavailable(_about_loading(str(e.__cause__ or e))) from None
        self.loaded = entry.library
        return key

    def find(self, plan: Plan, force: bool = False, hint: Callable[[], str] = str) -> cache.Entry:
        """The built library: as its package shipped it, from a folder of prebuilt ones, from the cache, or built now,
        with a hint said then."""
        made, unfit = (None, None) if force else self._shipped(plan)
        if made is not None:
            return made
        try:
            return self._found_or_built(plan, force, hint)
        except Unavailable as e:
            if unfit is None:
                raise
            raise Unavailable(f"{unfit}; and it cannot be built: {e}") from None

    def _shipped(self, plan: Plan) -> tuple[cache.Entry | None, Unavailable | None]:
        """What its package has for it, or why that does not run here."""
        there = all(source.is_file() for source in plan.sources)
        # opwright's headers count for its own operators: elsewhere its version does.
        ours = toolchain.INCLUDE.parent
        headers = plan.headers if there else ()
        inside = [f for f in headers if self.file.is_relative_to(ours) or not f.is_relative_to(ours)]
        try:
            given = self.file, (*plan.sources, *inside), self.namespace, self.device, plan.options
            return shipped.look_up(*given), None
        except Unavailable as e:
            return None, e

    def _found_or_built(self, plan: Plan, force: bool, hint: Callable[[], str]) -> cache.Entry:
        missing = next((s for s in plan.sources if not s.is_file()), None)
        if missing is not None:
            raise Unavailable(f"there is no source {missing}; write it, or install the package again")
        if self.guarded:
            for file in (*plan.sources, *plan.headers, *plan.more):
                if file.exists() and not file.is_relative_to(toolchain.INCLUDE):
                    refuse_foreign(file)
        entry = found_or_built(plan, force, hint)
        if self.guarded:
            for header in entry.about.get("more", ()):
                refuse_foreign(plan.located(header))  # one that only the compiler found
        return entry


def found_or_built(plan: Plan, force: bool = False, hint: Callable[[], str] = str) -> cache.Entry:
    """A plan's library: prebuilt elsewhere, from the cache, or built now, unless the environment forbids that."""
    made = None if force else _made_elsewhere(plan)
    if made is not None:
        return made
    if force or not forbidden():
        return compile.build(plan, force, hint())
    found = cache.look_up(cache.open_folder(), plan.key)
    if found is None:
        raise Unavailable("it is not built and OPWRIGHT_BUILD=0 forbids building; unset it, and run `opwright build`")
    return found


def _made_elsewhere(plan: Plan) -> cache.Entry | None:
    """The prebuilt library of a plan. One that is refused is named, and does not keep us from building."""
    try:
        return prebuilt.look_up(plan)
    except NoCache as e:
        if _first(str(e)):
            warnings.warn(f"opwright: {e}", RuntimeWarning, stacklevel=2)
        return None


def forbidden() -> bool:
    """Whether the environment forbids building: OPWRIGHT_BUILD=0."""
    return os.environ.get("OPWRIGHT_BUILD", "") == "0"


def _hint() -> str:
    """What else is worth building, said once, where somebody already waits for a compiler."""
    if not own.missed() or not _first("hint"):
        return ""
    return "; gradients and calls cost less once `opwright build` has built the rest"


_said: dict[str, object] = {}


def _first(sentence: str) -> bool:
    """Whether this is said for the first time."""
    mine = object()
    return _said.setdefault(sentence, mine) is mine


def _about_loading(said: str) -> str:
    if "failed to map segment" in said or "Operation not permitted" in said:
        return (
            f"the library cannot be loaded from the cache folder, whose file system may forbid running code ({said}); "
            f"set OPWRIGHT_CACHE_DIR to a folder on another one"
        )
    if "undefined symbol" in said:
        return f"the library does not fit this torch ({said}); build it again with `opwright build --force`"
    return f"the library cannot be loaded ({said})"


_libraries: dict[tuple[Path, str, Options, str], Library] = {}


def library_of(file: Path, namespace: str, options: Options, device: str = "cpu") -> Library:
    """The library of a file, the same one for everybody who asks."""
    return _libraries.setdefault((file, namespace, options, device), Library(file, namespace, options, device))


def libraries() -> list[Library]:
    """Every library that an operator has asked for."""
    return list(_libraries.values())


def _offered(library: str) -> int:
    """Where a library that is loaded lists its kernels; 0: it binds them without kernel.h."""
    try:
        ask = ctypes.CDLL(library).opwright_offered_1
    except AttributeError:
        return 0
    ask.restype = ctypes.c_void_p
    return ask() or 0
