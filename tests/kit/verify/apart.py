"""Checks in processes of their own: what is checked here crashes, corrupts its heap and leaves the processor changed."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import opwright as ow

# A server that has imported everything, from which a process is had in milliseconds.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch", "opwright", "opwright.kit.verify.run", __name__])


class Crashed(AssertionError):
    """The process ended before it had an answer."""


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a module's function, from another process."""
    here, there = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_answer, args=(there, function.__module__, function.__name__, arguments))
    process.start()
    there.close()
    try:
        good, value = here.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        raise Crashed(signal.Signals(-code).name if code < 0 else f"exit status {code}") from None
    finally:
        here.close()
    process.join()
    if not good:
        raise AssertionError(value)
    return value


def _answer(to: Connection, module: str, name: str, arguments: tuple[Any, ...]) -> None:
    try:
        answer = True, getattr(importlib.import_module(module), name)(*arguments)
    except BaseException as e:
        answer = False, f"{type(e).__name__}: {e}"
    to.send(answer)
    to.close()


def check_broken(name: str, only: Sequence[str], seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
    """For each seed, what the check finds in an operator that is wrong on purpose."""
    from tests.broken_ops import BROKEN

    op = next(b for b in BROKEN if b.name == name).op
    return [_findings(op, only, seed) for seed in seeds]


def check_awkward(theme: str, name: str, only: Sequence[str], seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
    """For each seed, what the check finds in an operator that is right."""
    from tests.awkward_ops import operator

    return [_findings(operator(theme, name), only, seed) for seed in seeds]


def check_shipped(name: str, only: Sequence[str], seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
    """For each seed, what the check finds in an operator of the package."""
    return [_findings(getattr(ow, name), only, seed) for seed in seeds]


def _findings(op: ow.Op[..., Any], only: Sequence[str], seed: int) -> list[dict[str, Any]]:
    report = ow.check(op, only=only, seed=seed)
    assert report.cases > 0, "no case ran"
    return [asdict(f) for f in report.failures]
