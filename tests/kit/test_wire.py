"""Python and the package's own C++ mean the same by what they tell each other, or do not talk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import native, node, registry, ways, wire

needs_native = pytest.mark.skipif(native.available() is not None, reason="the own C++ is not built")


def variant(*fields: tuple[str, Any]) -> Any:
    """The record Source with other fields."""
    return NamedTuple("Source", list(fields))  # type: ignore[misc]


SOURCE = {"origin": wire.Origin, "position": int, "optional": bool, "like": bool, "needs": int}
DIFFERENT = {
    "renamed": [("where" if name == "position" else name, kind) for name, kind in SOURCE.items()],
    "swapped": [(name, SOURCE[name]) for name in ("origin", "position", "like", "optional", "needs")],
    "dropped": [*SOURCE.items()][:-1],
    "added": [*SOURCE.items(), ("more", int)],
    "of another type": [*(SOURCE | {"needs": int | None}).items()],
    "a list": [*(SOURCE | {"needs": tuple[int, ...]}).items()],
}


@needs_native
@pytest.mark.parametrize("how", DIFFERENT)
def test_a_library_with_another_record_is_not_used(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load: Callable[[], str | None] = native.available.__wrapped__  # type: ignore[attr-defined]
    assert load() is None
    records = tuple(r for r in wire.RECORDS if r is not wire.Source)
    monkeypatch.setattr(wire, "RECORDS", (variant(*DIFFERENT[how]), *records))
    why = load()
    assert why is not None
    assert "differ in Source (" in why
    assert "opwright build" in why


def test_the_description_says_which_records_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = wire.describe()
    assert wire.difference(theirs) is None
    monkeypatch.setattr(wire, "VERSION", wire.VERSION + 1)
    assert "version" in str(wire.difference(theirs))
    cut = "\n".join(wire.describe().splitlines()[:-1])
    assert "differ in Routing (" in str(wire.difference(cut))


OTHERWISE = """
import torch, opwright as ow
from opwright.kit import doctor
from opwright.kit.dispatch import native, short, wire
{change}

@ow.op(opaque=True)
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

x = torch.ones(3, requires_grad=True)
for _ in range(2):
    twice(x).sum().backward()
assert x.grad.tolist() == [4.0] * 3
assert short._module is None
print(native.available())
print({{f.what: f for f in doctor.examine()}}["opwright's own C++"].found)
"""


@needs_native
@pytest.mark.parametrize(
    "change, says",
    [("wire.VERSION += 1", "opwright build"), ("short._KINDS[object()] = 'unknown'", "None")],
    ids=["native", "call"],
)
def test_operators_run_in_python_where_the_two_differ(change: str, says: str) -> None:
    script = OTHERWISE.format(change=change)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def scaled(x: Tensor, n: ow.Number, y: Tensor | None = None) -> Tensor:
    return x * n


def written(name: str) -> tuple[Any, list[str]]:
    """An operator that C++ records, and what Python tells of it."""
    op = ow.op(name=name, opaque=True)(scaled)
    x = torch.ones(3, requires_grad=True)
    op(x, 2).sum().backward()
    return op, wire.words(node._recorded(registry.entry_of(op.overload.name())))


def refused(words: list[str], teller: str = "record") -> str:
    with pytest.raises(RuntimeError, match="opwright: what Python wrote") as raised:
        getattr(torch.ops.opwright_native, teller)(words)
    return str(raised.value).splitlines()[0]


@needs_native
def test_a_record_that_is_cut_short_is_refused() -> None:
    op, words = written("wire_cut")
    for length in range(len(words)):
        assert "ends inside the record" in refused(words[:length])
    assert "goes on after the record" in refused([*words, "1"])
    torch.ops.opwright_native.record(words)
    assert op(torch.ones(2), 2).tolist() == [2, 2]


@needs_native
def test_a_word_that_is_out_of_place_is_refused() -> None:
    _, words = written("wire_misplaced")
    assert "has 'Recorded' in place of Routing in the record Routing" in refused(words, "install")
    choice = words.index("gradient")
    assert "(gradient, input, output, wanted) in the record Source" in refused(
        [*words[:choice], "else", *words[choice + 1 :]]
    )
    assert "has 'x' in place of int in the record Source" in refused([*words[:-2], "x", words[-1]])
    assert "in place of Source" in refused([*words[: choice - 1], "Sauce", *words[choice:]])


def routing(op: ow.Op[..., Any], *dtypes: torch.dtype) -> list[str]:
    taken = wire.Argument(wide=False, dtypes=dtypes, least_rank=0, most_rank=4, words=())
    any_size = wire.Dimension(size=None, name=0, plus=None, factor=1, divisor=1)
    route = wire.Route(
        kernel=op.overload.name(),
        dtypes=dtypes,
        mixed=False,
        broadcast=True,
        layout="contiguous",
        arguments=(taken,) * 3,
        required=(0,),
        numbers=(1,),
        texts=(),
        names=1,
        patterns=(wire.Pattern(argument=0, leading=True, dimensions=(any_size,)),),
        says="",
    )
    entry = registry.entry_of(op.overload.name())
    reference, rejecting = ways.unrouted(entry), ways.rejecting(entry)
    return wire.words(wire.Routing(op.overload.name(), "XPU", reference, rejecting, (route,)))


@needs_native
def test_every_dtype_crosses_by_its_name() -> None:
    op, _ = written("wire_dtypes")
    every = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    words = routing(op, *every)
    torch.ops.opwright_native.install(words)
    for length in range(len(words)):
        assert "ends inside the record" in refused(words[:length], "install")
    strange = ["float31" if word == "float32" else word for word in words]
    assert "has 'float31' in place of dtype in the record Route" in refused(strange, "install")
