"""Which torch functions a type serves: tried, not assumed."""

from __future__ import annotations

import copy
import faulthandler
import json
import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from opwright.tensors.arguments import fill, guesses
from opwright.tensors.fallback import to_dense
from opwright.tensors.like import TensorLike
from opwright.tensors.protocol import leaves
from opwright.tensors.signature import dotted

Status = Literal["own", "fallback", "raises", "differs", "untried", "ignored"]

MEANING: dict[Status, str] = {
    "own": "an override of the type computed it",
    "fallback": "works, by the type's fallback or by PyTorch's default",
    "raises": "works on a dense tensor and raises on the type",
    "differs": "gives a result that differs from the dense tensor's",
    "untried": "no arguments could be made",
    "ignored": "PyTorch asks no type about it",
}

# Never called: they would end the process, start a device, or hand memory to someone else.
_NEVER = ("cudnn_", "miopen_", "mkldnn_", "fbgemm_", "quantized_", "_cudnn", "_mkldnn", "_miopen", "_fw_", "_nested")
_NEVER_NAMES = frozenset(
    {
        "share_memory_",
        "pin_memory",
        "cuda",
        "xpu",
        "ipu",
        "mtia",
        "__dlpack__",
        "__dlpack_device__",
        "__setstate__",
        "storage_type",
        "set_",
        "to_mkldnn",
        "resize_as_sparse_",
        "sparse_resize_",
        "sparse_resize_and_clear_",
        "__reduce_ex__",
        "__cuda_array_interface__",
        "module_load",
        "is_pinned",
        "embedding_bag",
        "_to_sparse",
        "rnn_tanh_cell",
        "rnn_relu_cell",
        "gru_cell",
        "lstm_cell",
    }
)
# Their results are whatever lay in memory, or the time of day.
_UNCOMPARED = ("empty", "rand", "unpool", "resize", "__hash__", "__repr__", "data_ptr", "__dir__", "__deepcopy__")
_VALID = 4  # argument lists that are tried on the type, once they are known to work on a dense tensor


@dataclass(frozen=True)
class Row:
    """What was observed of one torch function."""

    name: str
    namespace: str
    status: Status
    note: str = ""


@dataclass(frozen=True)
class Coverage:
    """The overridable torch functions, and what each does with a type. Printed, a table by namespace."""

    type: str
    rows: tuple[Row, ...]

    def counts(self) -> dict[str, dict[str, int]]:
        """How many functions have which status, by namespace and in all."""
        found: dict[str, dict[str, int]] = {}
        for row in self.rows:
            for group in (row.namespace, "all"):
                group_counts = found.setdefault(group, dict.fromkeys(MEANING, 0))
                group_counts[row.status] += 1
        return {k: found[k] for k in sorted(found, key=lambda k: (k == "all", k))}

    def status(self, name: str) -> Status:
        """What was observed of the function of that name, such as `torch.add`."""
        for row in self.rows:
            if row.name == name:
                return row.status
        raise ValueError(f"Coverage: {name!r} is no overridable torch function")

    def to_json(self) -> dict[str, Any]:
        """The report as plain values: type, torch's version, counts, and one entry a function."""
        return {
            "type": self.type,
            "torch": str(torch.__version__),
            "counts": self.counts(),
            "functions": [{"name": r.name, "status": r.status, "note": r.note} for r in self.rows],
        }

    def __str__(self) -> str:
        counts = self.counts()
        width = max(map(len, counts))
        lines = [f"{self.type:{width}}  {'  '.join(f'{s:>8}' for s in MEANING)}"]
        lines += [f"{k:{width}}  {'  '.join(f'{n:8}' for n in v.values())}" for k, v in counts.items()]
        return "\n".join(lines)

    __repr__ = __str__


def coverage(cls: type, example: Any = None) -> Coverage:
    """Try every overridable torch function on `cls`, and report which work, how, and which do not.

    `example` is one value of the type, at best a small square matrix of floats; without it `cls.example()` is
    asked, and a Tensor subclass is made from a Tensor. A function counts as working when a call with arguments
    that a dense tensor takes returned what it returned for the dense tensor. What PyTorch defines for no type to
    override is listed as ignored. Takes some seconds.

    >>> report = coverage(TensorLike, example=_Opaque())
    >>> report.status("torch.exp"), report.status("torch.numel"), report.status("torch.zeros")
    ('raises', 'own', 'ignored')
    """
    value = _example(cls) if example is None else example
    dense = _dense(value)
    functions = list(_functions())
    rows = _apart(functions, value, dense) if hasattr(os, "fork") and dense.device.type == "cpu" else []
    rows += _here(functions[len(rows) :], value, dense)
    for function in torch.overrides.get_ignored_functions():
        if torch.overrides.resolve_name(function) is not None:
            rows.append(Row(dotted(function), _namespace(dotted(function)), "ignored"))
    rows = list({row.name: row for row in rows}.values())
    return Coverage(cls.__name__, tuple(sorted(rows, key=lambda r: (r.namespace, r.name))))


def _here(functions: list[Callable[..., Any]], value: Any, dense: Tensor) -> list[Row]:
    # A call may print nothing, warn nobody, and leave the random numbers and the gradient mode as they were.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        return [_observe(function, value, dense) for function in functions]


_PATIENCE = 20.0
"""Seconds after which a call that says nothing is taken to hang."""


def _apart(functions: list[Callable[..., Any]], value: Any, dense: Tensor) -> list[Row]:
    """Observe in a child process: some functions end the process when their arguments are made up."""
    rows: list[Row] = []
    while len(rows) < len(functions):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            # What a crash has to say is not for the user's terminal.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            faulthandler.disable()
            try:
                torch.set_num_threads(1)  # the parent's other threads did not come along
                with os.fdopen(writing, "wb") as out:
                    for function in functions[len(rows) :]:
                        out.write(json.dumps(vars(_here([function], value, dense)[0])).encode() + b"\n")
                        out.flush()
            finally:
                os._exit(0)
        os.close(writing)
        text = b""
        while select.select([reading], [], [], _PATIENCE)[0] and (piece := os.read(reading, 1 << 16)):
            text += piece
        os.kill(child, signal.SIGKILL)  # it has ended, or hangs
        os.waitpid(child, 0)
        os.close(reading)
        rows += [Row(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
        if len(rows) < len(functions):
            name = dotted(functions[len(rows)])
            rows.append(Row(name, _namespace(name), "untried", "made-up arguments end or hang the process"))
    return rows


class _Opaque(TensorLike):
    """The least a type can be: it has no override of its own and refuses the rest."""

    shape, dtype, device = torch.Size((3, 3)), torch.float32, torch.device("cpu")

    def dense(self) -> Tensor:
        return torch.eye(3)


def _functions() -> Iterator[Callable[..., Any]]:
    seen = set()
    for functions in torch.overrides.get_overridable_functions().values():
        for function in functions:
            if function not in seen:
                seen.add(function)
                yield function


def _observe(function: Callable[..., Any], value: Any, dense: Tensor) -> Row:
    name = dotted(function)
    row = (name, _namespace(name))
    last = name.rpartition(".")[2]
    if last.startswith(_NEVER) or last in _NEVER_NAMES:
        return Row(*row, "untried", "not safe to call with made-up arguments")
    seen = [
        _try(function, name, value, dense, args, kwargs, expected)
        for args, kwargs, expected in _valid_calls(function, name, dense)
    ]
    # One wrong result is the worst news; short of it, what works at all works.
    order: tuple[Status, ...] = ("differs", "own", "fallback", "raises")
    if not seen:
        return Row(*row, "untried", "no arguments found that a dense tensor takes")
    return Row(*row, *min(seen, key=lambda status_and_note: order.index(status_and_note[0])))


def _valid_calls(function: Callable[..., Any], name: str, dense: Tensor) -> Iterator[tuple[Any, Any, Any]]:
    """Arguments that work on the dense form, with what came out."""
    found = 0
    for args, kwargs in guesses(function, bound=name.startswith("torch.Tensor.")):
        try:
            expected = _call(function, name, dense.clone(), dense, args, kwargs)
        except Exception:
            continue
        if expected is NotImplemented:
            continue
        yield args, kwargs, expected
        found += 1
        if found == _VALID:
            return


def _try(
    function: Callable[..., Any], name: str, value: Any, dense: Tensor, args: Any, kwargs: Any, expected: Any
) -> tuple[Status, str]:
    if isinstance(value, TensorLike) and type(value).override_of(function) is not None:
        # A twin that refuses to fall back: where it answers, the override did.
        twin = copy.copy(value)
        object.__setattr__(twin, "__class__", _strict(type(value)))
        try:
            got = _call(function, name, twin, dense, args, kwargs)
            return ("own", "") if _same(got, expected, name) else ("differs", "the override")
        except Exception:
            pass  # it declined these arguments
    try:
        here = value.clone() if isinstance(value, Tensor) else copy.copy(value)
        got = _call(function, name, here, dense, args, kwargs)
    except Exception as e:
        return "raises", f"{type(e).__name__}: {e}".split("\n")[0]
    return ("fallback", "") if _same(got, expected, name) else ("differs", "the fallback")


_stricts: dict[type, type] = {}


def _strict(cls: type[TensorLike]) -> type:
    if cls not in _stricts:
        _stricts[cls] = type(cls.__name__, (cls,), {"fallback": "error"})
    return _stricts[cls]


def _call(function: Callable[..., Any], name: str, here: Any, dense: Tensor, args: Any, kwargs: Any) -> Any:
    """Call as a user would: a method by its name, since torch.Tensor.add refuses what is no Tensor."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed would queue work for devices not yet started
    filled, named = fill(args, here, dense), fill(kwargs, here, dense)
    if name.startswith("torch.Tensor."):
        attribute = getattr(filled[0], name.rpartition(".")[2])
        return attribute(*filled[1:], **named) if callable(attribute) else attribute
    return function(*filled, **named)


def _same(got: Any, expected: Any, name: str) -> bool:
    if any(word in name for word in _UNCOMPARED):
        return True
    ours, theirs = list(leaves(got)), list(leaves(expected))
    return len(ours) == len(theirs) and all(map(_agree, ours, theirs))


def _agree(got: Any, expected: Any) -> bool:
    if not isinstance(expected, Tensor):
        return isinstance(got, type(expected)) or not isinstance(expected, (bool, int, float, torch.dtype))
    got = to_dense(got)
    if not isinstance(got, Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if expected.layout != torch.strided or expected.is_quantized or not expected.numel():
        return True
    with torch._C.DisableTorchFunctionSubclass():
        return bool(torch.allclose(got.to(torch.cdouble), expected.to(torch.cdouble), 1e-4, 1e-5, equal_nan=True))


def _namespace(name: str) -> str:
    return name.rpartition(".")[0]


def _example(cls: type) -> Any:
    if hasattr(cls, "example"):
        return cls.example()
    if issubclass(cls, Tensor):
        return _square().as_subclass(cls)
    raise TypeError(
        f"coverage: needs a value of {cls.__name__} to try; pass example=…, or give the class a classmethod example()"
    )


def _dense(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor).detach().clone()
    if not hasattr(value, "dense"):
        raise TypeError(f"coverage: {type(value).__name__} needs a method dense(), to compare results with")
    return value.dense()  # type: ignore[no-any-return]


def _square() -> Tensor:
    return torch.eye(3) + torch.arange(9.0).reshape(3, 3) / 10
