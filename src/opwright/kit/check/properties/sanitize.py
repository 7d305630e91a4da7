"""The same under AddressSanitizer and UndefinedBehaviorSanitizer: no stray access, no undefined behaviour."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from opwright.kit.build import toolchain
from opwright.kit.build.trouble import Unavailable
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties import forward, gradients
from opwright.kit.check.property import Property

PROPERTY = Property(turn=240, device="cpu", process="alone", once=True, asked="sanitize")

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1"


def skip(subject: Subject) -> str | None:
    if not any(k.library is not None and k.device == "cpu" for k in subject.op.kernels):
        return "no built kernel runs on the CPU"
    if not runtimes():
        return "this compiler has no sanitizers: there is no libasan.so beside it"
    return forward.skip(subject)


def cases(subject: Subject) -> Iterator[Case]:
    small = (case for case in subject.cases() if case.variant != "vast" and not case.values.startswith("2^"))
    yield from (replace(case, extra="forward") for case in small if case.dtype in subject.fast_dtypes)
    if not subject.op.is_gradient and gradients.skip(subject) is None:
        for s in range(subject.count):
            yield Case(s, subject.main, extra="gradients")


def check(subject: Subject, case: Case) -> None:
    plain = replace(case, extra="")
    if case.extra == "forward":
        forward.check(subject, plain)
    else:
        gradients.check(subject, replace(plain, extra="expanded"))


@lru_cache
def runtimes() -> tuple[str, ...]:
    """The libraries of the sanitizers that the compiler at hand brings."""
    try:
        command = toolchain.compiler().command
    except Unavailable:
        return ()
    found = []
    for name in ("libasan.so", "libubsan.so"):
        try:
            done = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        except OSError:
            return ()
        path = Path(done.stdout.strip())
        if not path.is_absolute() or not path.exists():
            return ()
        found.append(str(path.resolve()))
    return tuple(found)


def environment() -> dict[str, str]:
    """The environment of a worker whose kernels are built with sanitizers."""
    return {
        "LD_PRELOAD": " ".join(runtimes()),
        "OPWRIGHT_CXXFLAGS": FLAGS,
        "OPWRIGHT_LDFLAGS": "-fsanitize=address,undefined",
        # CUDA maps memory into what AddressSanitizer keeps free between its shadows, or else says it has none left.
        "ASAN_OPTIONS": "detect_leaks=0:symbolize=0:fast_unwind_on_fatal=1:allocator_may_return_null=1"
        ":protect_shadow_gap=0",
        "UBSAN_OPTIONS": "halt_on_error=1:symbolize=0:print_stacktrace=0",
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "2",
    }
