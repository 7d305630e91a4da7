"""Defining operators: from an annotated function, or as the in-place form of another."""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, overload

import torch

from opwright.kit import private
from opwright.kit.build.foreign import LOADED
from opwright.kit.derive import forms
from opwright.kit.derive.roles import InPlace
from opwright.kit.dispatch import flops, meshes
from opwright.kit.dispatch.autocast import read_casts
from opwright.kit.dispatch.batching import read_batching
from opwright.kit.op import Op, P, R
from opwright.kit.spec import words
from opwright.kit.spec.operator import Spec
from opwright.kit.spec.schema import read

flops.watch()
meshes.watch()


@overload
def op(function: Callable[P, R], /) -> Op[P, R]: ...


@overload
def op(
    *,
    name: str | None = None,
    namespace: str | None = None,
    mutates: Sequence[str] | str = (),
    nondifferentiable: Sequence[str | int] | str = (),
    random: bool = False,
    deterministic: bool = True,
    opaque: bool | None = None,
    compile: Literal["call", "inline"] = "call",
    autocast: Sequence[str] | None = None,
    tags: torch.Tag | Sequence[torch.Tag] = (),
    vmap: Literal["leading"] | Sequence[str] | None = None,
) -> Callable[[Callable[P, R]], Op[P, R]]: ...


def op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    namespace: str | None = None,
    mutates: Sequence[str] | str = (),
    nondifferentiable: Sequence[str | int] | str = (),
    random: bool = False,
    deterministic: bool = True,
    opaque: bool | None = None,
    compile: Literal["call", "inline"] = "call",
    autocast: Sequence[str] | None = None,
    tags: torch.Tag | Sequence[torch.Tag] = (),
    vmap: Literal["leading"] | Sequence[str] | None = None,
) -> Any:
    """Make an operator of an annotated function over tensors, its reference.

    Args:
        name: the operator's name; the function's own by default.
        namespace: where `torch.ops` finds it; by default the package it is defined in, `user` for scripts.
        mutates: parameters that it writes to. A name that ends in `_` writes to its first and returns it.
        nondifferentiable: parameters and outputs (by name, an output also by index) that carry no gradient.
        random: it draws random numbers.
        deterministic: whether the same call gives the same bits. False where kernels add up in whatever order threads
            come by (atomics): the check then compares values.
        opaque: keep it one call in graphs though it has no kernel. By default an operator is opaque when it
            has kernels, else PyTorch sees through it.
        compile: with kernels, whether torch.compile calls it or inlines its reference.
        autocast: the tensors that autocast casts, so that kernels run; its reference must give the same dtypes.
            By default the reference runs, and autocast does to it what it does to plain PyTorch.
        tags: what compilers should know, such as `torch.Tag.cudagraph_unsafe`, as `torch.library.custom_op` takes
            them. Its gradient and its other forms have them too. `pt2_compliant_tag` every operator has.
        vmap: the tensors whose leading dimensions are a batch of calls, so that `torch.func.vmap` is one call and keeps
            kernels; `"leading"`: all of them, which broadcast. By default vmap takes the reference apart.

    >>> import torch, opwright as ow
    >>> @ow.op
    ... def axpby(x: torch.Tensor, y: torch.Tensor, *, a: float = 1.0, b: float = 1.0) -> torch.Tensor:
    ...     "a·x + b·y in one pass."
    ...     ow.require(ow.broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
    ...     return a * x + b * y
    >>> axpby(torch.ones(2), torch.ones(2), a=2)
    tensor([3., 3.])
    >>> axpby(torch.ones(3), torch.ones(4))
    Traceback (most recent call last):
    ValueError: axpby: x and y must broadcast, got (3,) and (4,)
    """
    scope = sys._getframe(1).f_locals

    def make(function: Callable[..., Any]) -> Op[..., Any]:
        return Op(specify(function, scope, **said))

    said: dict[str, Any] = {
        "name": name, "namespace": namespace, "mutates": mutates, "nondifferentiable": nondifferentiable,
        "random": random, "deterministic": deterministic, "opaque": opaque, "compile": compile, "autocast": autocast,
        "tags": tags, "vmap": vmap,
    }  # fmt: skip
    return make if function is None else make(function)


def specify(
    function: Callable[..., Any],
    scope: dict[str, Any],
    *,
    name: str | None = None,
    namespace: str | None = None,
    mutates: Sequence[str] | str = (),
    nondifferentiable: Sequence[str | int] | str = (),
    random: bool = False,
    deterministic: bool = True,
    opaque: bool | None = None,
    compile: Literal["call", "inline"] = "call",
    autocast: Sequence[str] | None = None,
    tags: torch.Tag | Sequence[torch.Tag] = (),
    vmap: Literal["leading"] | Sequence[str] | None = None,
) -> Spec:
    """What `op` makes an operator of: all that was said, read. `scope`: where its annotations find names."""
    chosen = getattr(function, "__name__", "op") if name is None else name
    _refuse_function(function, chosen)
    _refuse_name(chosen, namespace)
    written = _read_names(chosen, "mutates", mutates)
    fixed = _read_names(chosen, "nondifferentiable", nondifferentiable)
    words.one_of(chosen, "compile", compile, ("call", "inline"))
    words.flag(chosen, "random", random)
    words.flag(chosen, "deterministic", deterministic)
    if opaque is not None:
        words.flag(chosen, "opaque", opaque)
    first = next(iter(inspect.signature(function).parameters), None) if chosen.endswith("_") else None
    if first is not None:
        if written and first not in written:
            raise TypeError(f"{chosen}: a name that ends in _ promises to write its first argument, {first!r}")
        written = written or [first]
    signature = read(function, chosen, mutates=written, nondifferentiable=fixed, scope=scope)
    casts = read_casts(chosen, signature.names, autocast)
    return Spec(
        chosen,
        namespace or _namespace_of(function),
        function.__module__ or "__main__",
        signature,
        function,
        # Whoever takes a generator draws from it.
        random=random or any(p.kind.schema.startswith("Generator") for p in signature.parameters),
        deterministic=deterministic,
        opaque=True if opaque else None,  # False is what an operator without kernels is anyway
        compile=compile,
        autocast=casts,
        tags=_read_tags(chosen, tags),
        vmap=read_batching(chosen, signature, random, vmap),
    )


def in_place(op: Op[..., Any], /) -> Op[..., Any]:
    """The in-place form of an operator: `axpby_` writes into the first argument of `axpby` and returns it.

    >>> import torch, opwright as ow
    >>> x = torch.tensor([1.0, 2.0])
    >>> ow.axpby_(x, torch.ones(2), a=3) is x, x
    (True, tensor([4., 7.]))
    """
    if not isinstance(op, Op):
        raise TypeError(f"in_place: its argument must be an operator, got {type(op).__name__}")

    def functional(*args: Any, **kwargs: Any) -> Any:
        """The reference, with the gradient behind it that its author declares, perhaps later than now."""
        return (op.reference if op.spec.formula is None else op.calls.seen_through)(*args, **kwargs)

    return Op(forms.in_place(op.spec, functional), InPlace(op))


def _refuse_function(function: Any, name: str) -> None:
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name}: a reference is a plain function, got {type(function).__name__}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name}: a reference is a plain function, not an async one")


def _read_names(name: str, word: str, given: Any) -> list[Any]:
    return [given] if isinstance(given, str) else list(words.several(name, word, given, "names"))


def _read_tags(name: str, tags: Any) -> tuple[torch.Tag, ...]:
    alone = isinstance(tags, (torch.Tag, str)) or not isinstance(tags, Iterable)
    read = (tags,) if alone else tuple(tags)
    for tag in read:
        if not isinstance(tag, torch.Tag):
            raise TypeError(
                f"{name}: tags are those of torch.Tag, such as torch.Tag.cudagraph_unsafe, got {tag!r}"
                f"{words.near(tag, (f'torch.Tag.{known}' for known in torch.Tag.__members__))}"
            )
    return tuple(sorted(set(read), key=lambda tag: tag.name))


def _refuse_name(name: str, namespace: str | None) -> None:
    for what, word in (("name", name), ("namespace", "user" if namespace is None else namespace)):
        if not isinstance(word, str):
            raise TypeError(f"{name}: an operator's {what} must be a string, got {word!r}")
        if keyword.iskeyword(word):
            raise TypeError(f"{name}: {word!r} is a keyword of Python; give another with @ow.op({what}=…)")
        if not (word.isidentifier() and word.isascii()) or word.startswith("__"):
            raise TypeError(
                f"{name}: an operator's {what} is made of letters, digits and _, got {word!r}; "
                f"give another with @ow.op({what}=…)"
            )
    if name in private.NAMESPACES_OWN:
        raise TypeError(f"{name}: torch.ops has a use of its own for this name; give another with @ow.op(name=…)")


def _namespace_of(function: Callable[..., Any]) -> str:
    package = (function.__module__ or "__main__").partition(".")[0]
    # A script that another program runs may have any name, such as <run_path> or my-script.
    of_script = package.startswith("__") or package == LOADED or not (package.isidentifier() and package.isascii())
    return "user" if of_script else package
