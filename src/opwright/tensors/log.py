"""`log_calls` and `Followed`: every torch call with its shapes, dtypes, time and nesting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright.tensors.carrier import Carrier
from opwright.tensors.protocol import leaves
from opwright.tensors.signature import dotted, is_getter

# Calls the body of a function that PyTorch wrote in Python without asking the mode about that function again, so
# that what the body calls can be recorded. torch.overrides.redispatch_function is the public name since torch 2.13.
_call_body: Callable[..., Any] | None = getattr(torch._C, "_skip_one_hop_torch_function", None)

# Reading x.shape and its like is no computation, and every line of code is full of it: not recorded.
# Printing a tensor computes with it; nobody wants to read that, and recording it could print again. Pickling one
# would save a log in the middle of a call.
_UNRECORDED = frozenset(
    {
        torch.Tensor.__repr__,
        torch.Tensor.__str__,
        torch.Tensor.__format__,
        torch.Tensor.__dir__,
        torch.Tensor.__reduce_ex__,
    }
)


_SILENT = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


@dataclass
class Call:
    """One torch call: its name, what went in and came out, seconds, and the calls it made."""

    name: str
    inputs: tuple[str, ...]
    output: str = ""
    seconds: float = 0.0
    error: str | None = None
    calls: list[Call] = field(default_factory=list)

    def __str__(self) -> str:
        result = f"raised {self.error}" if self.error else self.output
        return f"{self.name}({', '.join(self.inputs)}) -> {result}  {_spell_time(self.seconds)}"


@dataclass
class CallLog:
    """Recorded calls. Printed, a tree; `totals` gives a table.

    >>> log = CallLog([Call("torch.add", ("float32[3]", "1"), "float32[3]", 2e-6)])
    >>> print(log)
    torch.add(float32[3], 1) -> float32[3]  2.0 µs
    """

    calls: list[Call] = field(default_factory=list)
    _open: list[Call] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        return "\n".join(f"{'  ' * depth}{call}" for depth, call in self._walk(self.calls))

    __repr__ = __str__

    def __len__(self) -> int:
        """Calls at every depth."""
        return sum(1 for _ in self._walk(self.calls))

    def __iter__(self) -> Iterator[Call]:
        return (call for _, call in self._walk(self.calls))

    def totals(self) -> str:
        """A table: how often each function was called, and for how long, with and without the calls inside it.

        >>> print(CallLog([Call("torch.add", (), "", 2e-6), Call("torch.add", (), "", 1e-6)]).totals())
        function   calls   total   alone
        torch.add      2  3.0 µs  3.0 µs
        """
        sums: dict[str, tuple[int, float, float]] = {}
        for call in self:
            count, total, alone = sums.get(call.name, (0, 0.0, 0.0))
            inside = sum(c.seconds for c in call.calls)
            sums[call.name] = (count + 1, total + call.seconds, alone + call.seconds - inside)
        rows = [("function", "calls", "total", "alone")]
        for name, (count, total, alone) in sorted(sums.items(), key=lambda item: -item[1][1]):
            rows.append((name, str(count), _spell_time(total), _spell_time(alone)))
        width = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            f"{row[0]:{width[0]}}  " + "  ".join(f"{cell:>{width[i]}}" for i, cell in enumerate(row[1:], 1))
            for row in rows
        )

    @contextlib.contextmanager
    def record(self, function: Any, args: Any, kwargs: Any) -> Iterator[Call]:
        """Enter a call in the log while it runs; the caller fills in `output`."""
        call = Call(dotted(function), (*map(_show, args), *(f"{k}={_show(v)}" for k, v in kwargs.items())))
        (self._open[-1].calls if self._open else self.calls).append(call)
        self._open.append(call)
        start = time.perf_counter()
        try:
            yield call
        except BaseException as e:
            call.error = type(e).__name__
            raise
        finally:
            call.seconds = time.perf_counter() - start
            self._open.pop()

    def _walk(self, calls: list[Call], depth: int = 0) -> Iterator[tuple[int, Call]]:
        for call in calls:
            yield depth, call
            yield from self._walk(call.calls, depth + 1)


class _Recorder(TorchFunctionMode):
    def __init__(self, log: CallLog) -> None:
        super().__init__()
        self.log = log
        self.handed: Any = None
        """The function just handed to a type; when that type calls it in turn, it is the same call."""
        self.bodies: list[Any] = []
        """The functions whose Python bodies run; torch.Tensor.unflatten calls the C function of its own name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func in _UNRECORDED or is_getter(func) or func in self.bodies[-1:]:
            return func(*args, **kwargs)
        # Where a mode asks, Tensor and Parameter stand among the types although they have nothing to say.
        types = tuple(t for t in types if t.__torch_function__ not in _SILENT)
        handed, self.handed = self.handed, None
        if func is handed and not types:
            return self.run(func, args, kwargs)
        with self.log.record(func, args, kwargs) as call:
            result = self.ask(func, types, args, kwargs) if types else self.run(func, args, kwargs)
            call.output = _show(result)
        return result

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        # Only what PyTorch wrote in Python makes calls that a mode sees.
        if _call_body is None or not hasattr(func, "__code__"):
            return func(*args, **kwargs)
        self.bodies.append(func)
        try:
            with self:
                return _call_body(func, (), args, kwargs)
        finally:
            self.bodies.pop()

    def ask(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for kind in types:
            self.handed = func
            with self:
                result = kind.__torch_function__(func, types, args, kwargs)
            if result is not NotImplemented:
                return result
        self.handed = None
        raise TypeError(f"{dotted(func)}: no implementation found for {', '.join(t.__name__ for t in types)}")


@contextlib.contextmanager
def log_calls() -> Iterator[CallLog]:
    """Record every torch call made in this thread inside the `with` block.

    A function that PyTorch wrote in Python shows the calls it makes as its children. Outside the block nothing is
    left behind that could cost anything. Times are those of the host: on a GPU, of the launch.

    >>> with log_calls() as log:
    ...     y = torch.ones(3) + 1
    >>> [call.name for call in log], log.calls[-1].inputs
    (['torch.ones', 'torch.Tensor.add'], ('float32[3]', '1'))
    """
    log = CallLog()
    with _Recorder(log):
        yield log


class Followed(Carrier):
    """A tensor that records the calls it takes part in, and so do its results; other tensors go unrecorded.

    >>> x = Followed(torch.ones(3))
    >>> y = torch.ones(3) * (x + 1)
    >>> [call.name for call in x.calls]
    ['torch.Tensor.add', 'torch.Tensor.mul']
    >>> y
    Followed(tensor([2., 2., 2.]))
    """

    calls: CallLog

    @staticmethod
    def __new__(cls: type[Followed], tensor: Any, calls: CallLog | None = None) -> Followed:
        made = cls._made_of(tensor)
        made.calls = CallLog() if calls is None else calls
        return made

    def __init__(self, tensor: Any, calls: CallLog | None = None) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        followed = [v for v in leaves((args, kwargs)) if isinstance(v, Followed) and hasattr(v, "calls")]
        if func in _UNRECORDED or is_getter(func) or not followed:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        log = followed[0].calls
        with log.record(func, args, kwargs) as call:
            result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
            call.output = _show(result)
        for value in leaves(result):
            if isinstance(value, Followed) and not hasattr(value, "calls"):
                value.calls = log
        return result


def _show(value: Any) -> str:
    """`float32[3, 4]` for a tensor, a number as it is, a type's name for what would be long."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return f"({', '.join(map(_show, value))})"
    if isinstance(value, torch.Tensor):
        # Not through __torch_function__: describing a call must not be one.
        with torch._C.DisableTorchFunction():
            where = "" if value.device.type == "cpu" else f" {value.device}"
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{where}"
    if hasattr(type(value), "__torch_function__"):
        return f"{type(value).__name__}{list(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.Size)):
        return str(tuple(value)) if isinstance(value, torch.Size) else repr(value)
    return str(value) if isinstance(value, (torch.dtype, torch.device)) else type(value).__name__


def _spell_time(seconds: float) -> str:
    """A time in words: `2.0 µs`.

    >>> _spell_time(2e-6), _spell_time(0.25), _spell_time(3)
    ('2.0 µs', '250.0 ms', '3.0 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
