"""What a function captures: two that compute differently have different digests, and one has the same everywhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit.spec.captured import digest, named

ROOT = Path(__file__).parent.parent.parent

# What differs stands in N, and G is what the reference names.
HOLDERS = {
    "a cached helper": "@functools.lru_cache(None)\ndef G(x): return x * N",
    "a partial": "G = functools.partial(operator.mul, N)",
    "a partial of a partial": "G = functools.partial(functools.partial(operator.mul), N)",
    "a bound method": "class C:\n    def __init__(self, k): self.k = k\n"
    "    def go(self, x): return x * self.k\nG = C(N).go",
    "an object": "class C: pass\nG = C()\nG.k = N",
    "an object with slots": "@dataclasses.dataclass(frozen=True, slots=True)\nclass C:\n    k: int\nG = C(N)",
    "a base with slots": "class B:\n    __slots__ = ('k',)\nclass C(B): pass\nG = C()\nG.k = N",
    "a class's attribute": "class G: k = N",
    "an inherited attribute": "class B: k = N\nclass G(B): pass",
    "an inherited method": "class B:\n    def go(self): return N\nclass C(B): pass\nG = C()",
    "a property": "class C:\n    @property\n    def k(self): return N\nG = C()",
    "a cached property": "class C:\n    @functools.cached_property\n    def k(self): return N\nG = C()",
    "a static method": "class G:\n    @staticmethod\n    def go(): return N",
    "a namespace": "G = types.SimpleNamespace(k=N)",
    "a view of a mapping": "G = types.MappingProxyType({'k': N})",
    "a named tuple": "class C(typing.NamedTuple):\n    k: int\nG = C(N)",
    "a dictionary of one's own": "class C(dict): pass\nG = C(k=N)",
    "a default dictionary": "G = collections.defaultdict(list, k=N)",
    "an ordered dictionary": "G = collections.OrderedDict(k=N)",
    "a deque": "G = collections.deque([N])",
    "a number of one's own": "class C(int): pass\nG = C(N)",
    "a slice": "G = slice(0, N)",
    "a range": "G = range(N)",
    "a path": "G = pathlib.Path('a') / str(N)",
    "a pattern": "G = re.compile(f'a{{{N}}}')",
    "a scalar of NumPy's": "G = np.float32(N)",
    "an array": "G = np.arange(N)",
    "an array of objects": "G = np.array([N, 'a', None], dtype=object)",
    "arrays in a list": "G = [np.zeros(2, np.int32 if N == 2 else np.float32)]",
    "a dtype": "G = types.SimpleNamespace(dtype=[torch.float16, torch.float32, torch.float64][N - 1])",
    "a device": "G = torch.device('cuda', N)",
    "a memory format": "G = [torch.channels_last, torch.preserve_format][N - 2]",
    "a size": "G = torch.Size([N])",
    "a tensor": "G = torch.tensor([N])",
    "a layer": "G = torch.nn.Dropout(N / 10)",
    "a set": "G = {torch.float16, (torch.relu, N), 'a', 'b', frozenset({'c', 'd'})}",
    "a dictionary by functions": "G = {torch.relu: 1, torch.tanh: N}",
    "a list by another name": "X, Y = [[1]], [[1]]\nG = (X, Y, X if N == 2 else Y)",
    "a member": "class C(enum.Enum):\n    A = (N, torch.relu)\nG = C.A",
    "a member's method": "class C(enum.Enum):\n    A = 1\n    def go(self): return N\nG = C.A",
    "a function's attribute": "def G(x): return x * G.k\nG.k = N",
    "a decorated helper": "def by(k):\n    def d(f):\n        @functools.wraps(f)\n"
    "        def w(x): return f(x) * k\n        return w\n    return d\n@by(N)\ndef G(x): return x",
    "a helper that wraps PyTorch's": "def make(k):\n    @functools.wraps(torch.relu)\n"
    "    def w(x): return x * k\n    return w\nG = make(N)",
    "a helper without gradients": "@torch.no_grad()\ndef G(x): return x * N",
    "a vectorized helper": "def plain(x): return x * N\nG = torch.func.vmap(plain)",
    "a name of Python's": "G = sum = lambda x: N",
    "a submodule": "G = types.ModuleType('a')\nG.sub = types.ModuleType('a.sub')\n"
    "exec(f'def go(x): return x * {N}', vars(G.sub))",
    "a lazy module": "G = types.ModuleType('a')\nexec('def __getattr__(name): return N', vars(G))",
    "a reference to it": "class C: pass\nkept = C()\nkept.k = N\nG = weakref.ref(kept)",
    "a lock and a logger": "class C:\n    def __init__(self):\n        self.lock, self.k = threading.RLock(), N\n"
    "        self.log = logging.getLogger('a')\nG = C()",
}
SCRIPT = """
import collections, dataclasses, enum, functools, logging, operator, pathlib, re, threading, types, typing, weakref
import torch
import numpy as np
{holder}
def f(x): return G.sub.go(x), G.k, sum(x), G[0]
"""


def make(holder: str, n: int) -> Any:
    """The reference of a script in which `n` stands for N."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    text = re.sub(r"\bN\b", str(n), SCRIPT.format(holder=HOLDERS[holder]))
    exec(compile(text, holder, "exec", dont_inherit=True), scope)
    return scope["f"]


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_a_reference_reaches_is_part_of_it(holder: str) -> None:
    two = digest(make(holder, 2))
    assert two == digest(make(holder, 2))
    assert two != digest(make(holder, 3))


@pytest.mark.slow
def test_every_process_finds_the_same(tmp_path: Path) -> None:
    code = "import sys\nfrom tests.kit.test_captured import HOLDERS, digest, make\n"
    code += "for holder in HOLDERS: print(holder, digest(make(holder, 2)))"
    expected = "".join(f"{holder} {digest(make(holder, 2))}\n" for holder in HOLDERS)
    for seed in "12":
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == expected


def test_references_of_ours_are_spelled() -> None:
    for op in (ow.axpby, ow.axpby_, ow.linear, ow.lltm, ow.sigmoid):
        assert op.digest == op.digest


def package(folder: Path, name: str, factor: int) -> Any:
    """A package whose reference imports when it runs."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "op.py").write_text(
        f"def f(x):\n    from .helper import g\n    return g(x)\n"
        f"def h(x):\n    import {name}.helper as other\n    return other.g(x)\n"
        f"def k(x):\n    import math, torch.nn.functional as F\n    return F.relu(x) * math.pi\n"
    )
    (folder / name / "helper.py").write_text(f"def g(x): return x * {factor}\n")
    return importlib.import_module(f"{name}.op")


def test_imports_of_a_function_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    one, other = package(tmp_path, "imports_one", 2), package(tmp_path, "imports_two", 3)
    assert digest(one.k) == digest(other.k)
    assert digest(one.f) != digest(one.f), "nobody knows yet what it is"
    assert one.f(1) == one.h(1) == 2
    assert other.f(1) == other.h(1) == 3
    for name in ("f", "h"):
        assert digest(getattr(one, name)) == digest(getattr(one, name))
        assert digest(getattr(one, name)) != digest(getattr(other, name))
    before = digest(one.f), digest(one.h)
    monkeypatch.setattr(sys.modules["imports_one.helper"], "g", lambda x: x * 7)
    assert digest(one.f) != before[0]
    assert digest(one.h) != before[1]


def test_what_cannot_be_spelled_is_one_of_a_kind() -> None:
    class Stubborn:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError

    for value in ((i for i in range(2)), Stubborn(), 10**5000, {object(), object()}, [types.ModuleType("a")]):
        assert digest(value) != digest(value)


def test_long_chains_and_large_values_take_little() -> None:
    class Link:
        def __init__(self, following: Any) -> None:
            self.following = following

    chain: Any = None
    for _ in range(5000):
        chain = Link(chain)
    assert digest(chain) == digest(chain)
    for _ in range(60_000):
        chain = Link(chain)
    many = list(range(1_000_000))
    start = time.process_time()
    assert digest(chain) != digest(chain), "too long to tell"
    assert digest(many) == digest(many)
    assert digest(many) != digest([*many[:-1], 0])
    assert time.process_time() - start < 5


def test_an_object_is_no_operator_for_its_looks() -> None:
    value = types.SimpleNamespace(definition=1)
    assert digest(value) == digest(types.SimpleNamespace(definition=1))
    assert digest(value) != digest(types.SimpleNamespace(definition=2))


def test_attributes_are_named_when_the_code_names_them() -> None:
    class Holder:
        def __init__(self) -> None:
            self.used, self.unused, self.hidden = torch.ones(1), torch.ones(2), {"w": [torch.ones(3)]}

        def go(self) -> Any:
            return self.hidden

        def never(self) -> Any:
            return self.unused

    holder = Holder()
    found = {name: value.numel() for name, value in named(lambda: (holder.used, holder.go())) if torch.is_tensor(value)}
    assert found == {"holder.used": 1, "holder.hidden['w'][0]": 3}
