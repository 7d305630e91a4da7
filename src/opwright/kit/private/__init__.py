"""What PyTorch has and does not promise: every private name of its Python that the toolkit uses. None is elsewhere.

All of them were seen in torch 2.10.0, 2.11.0, 2.13.0 and 2.15.0, the versions that the tests have run with (`make
test-versions`); what is only in some says so.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_map as tree_map

_C: Any = torch._C  # its stubs leave half of these out

AFTER_AUTOGRAD = _C._after_autograd_keyset
BelowADInplaceOrView = _C._AutoDispatchBelowADInplaceOrView
BelowAutograd = _C._AutoDispatchBelowAutograd
DispatchKey = _C.DispatchKey
DispatchKeySet = _C.DispatchKeySet
excluded_keys = _C._dispatch_tls_local_exclude_set
ExcludeDispatchKeyGuard = _C._ExcludeDispatchKeyGuard
ForceDispatchKeyGuard = _C._ForceDispatchKeyGuard
has_any_kernel = _C._dispatch_has_kernel
has_kernel = _C._dispatch_has_kernel_for_dispatch_key
HigherOrderOperator = torch._ops.HigherOrderOperator
included_keys = _C._dispatch_tls_local_include_set
innermost_transform = _C._functorch.peek_interpreter_stack
internal_overlap = torch._debug_has_internal_overlap
is_alias = _C._is_alias_of
is_functional = torch._is_functional_tensor
is_legacy_batched = _C._functorch.is_legacy_batchedtensor
is_wrapped = _C._functorch.is_functorch_wrapped_tensor
key_is_excluded = _C._dispatch_tls_is_dispatch_key_excluded
modes = _C._len_torch_dispatch_stack
NAMESPACES_OWN = ("name", "_dir")  # attributes of torch.ops.NAMESPACE, under which no operator is found
NO_TORCH_DISPATCH = _C._disabled_torch_dispatch_impl
operator_names = _C._dispatch_get_all_op_names
OpNamespace: Any = torch._ops._OpNamespace
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
parse_key = _C._parse_dispatch_key
parse_schema = _C.parse_schema
privateuse1_name = _C._get_privateuse1_backend_name
schemas_of = _C._jit_get_schemas_for_operator
tracing_context = torch._guards.TracingContext.try_get
transforms = _C._functorch.get_interpreter_stack
transforms_are_active = _C._are_functorch_transforms_active
TransformType = _C._functorch.TransformType
UndefinedGrad = _C._functions.UndefinedGrad
without_modes = torch.utils._python_dispatch._disable_current_modes


CLASSES = "__torch__.torch.classes."
"""What the names of custom classes begin with."""


def class_in_cpp(namespace: str, name: str) -> Any:
    """What makes objects of a custom class; None: there is no such class."""
    try:
        return _C._get_custom_class_python_wrapper(namespace, name)
    except RuntimeError:
        return None


def classes() -> list[str]:
    """The custom classes that there are, as `namespace.Class`."""
    owners = (schema.arguments[0].type.str() for schema in _C._jit_get_custom_class_schemas() if schema.arguments)
    return sorted({str(name).removeprefix(CLASSES) for name in owners if str(name).startswith(CLASSES)})


def is_taken(namespace: str) -> bool:
    """Whether a TORCH_LIBRARY stands for a namespace, of which there may be one in a process."""
    try:
        torch.library.Library(namespace, "DEF")._destroy()
    except (RuntimeError, ValueError):
        return True
    return False


def class_of(value: Any) -> str | None:
    """The name of an object's custom class; None: it has none."""
    return value._type().qualified_name() if isinstance(value, _C.ScriptObject) else None


def implement(library: Any, name: str, function: Callable[..., Any], key: str, with_keyset: bool = False) -> None:
    """What `library.impl` does, without its own record of it, which would cost every operator 3 KiB."""
    library.m.impl(name, key, function, with_keyset)


def register_fake(library: Any, name: str, function: Callable[..., Any]) -> None:
    """What torch.library.register_fake does, without reading the source of whoever calls it, which takes longer than
    all the rest."""
    entry = torch._library.simple_registry.singleton.find(f"{library.ns}::{name}")
    library._registration_handles.append(entry.fake_impl.register(function, "opwright", lib=library))


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Neither modes nor torch.func's transforms see what is called inside."""
    transforms = DispatchKeySet(DispatchKey.FuncTorchDynamicLayerFrontMode)
    transforms = transforms | DispatchKeySet(DispatchKey.FuncTorchDynamicLayerBackMode)
    with _C._DisableTorchDispatch(), ExcludeDispatchKeyGuard(transforms):
        yield


KEEPS_ARCHIVES = "m -Wl,--exclude-libs,ALL"
"""An entry of AOTInductor's `aot_inductor.custom_op_libs` by which a model's library gives nothing away that came out
of an archive. There is no setting for the linker's flags, and what is in the list goes to it as it stands, after -l."""


def compile_ahead(program: Any, file: str) -> None:
    """Compile an exported program with AOTInductor, into an archive."""
    from torch._inductor import aoti_compile_and_package, config

    # Some compilers bring libstdc++ as an archive alone. The model's library would carry a second one, of which some
    # symbols are one for the process: the first number that it reads or prints throws std::bad_cast, or crashes.
    libraries = [*(config.aot_inductor.custom_op_libs or ()), KEEPS_ARCHIVES]
    aoti_compile_and_package(program, package_path=file, inductor_configs={"aot_inductor.custom_op_libs": libraries})


def forward_level() -> int:
    """The level of forward-mode AD that is under way; -1 when none is."""
    return torch.autograd.forward_ad._current_level


def fake_tensor_mode(**options: Any) -> Any:
    """A mode in which tensors have shapes and no memory. Not at import: it would bring Dynamo's half along."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    lasting_device_guard()
    return FakeTensorMode(**options)


@functools.cache
def lasting_device_guard() -> None:
    """In a CUDA build without a GPU the first fake mode makes an object of its thread the guard of CUDA devices for the
    whole process. Once that thread has ended, the next backward crashes. So a thread that never ends goes first."""
    if torch.version.cuda is None or torch.cuda.is_available():
        return
    if threading.current_thread() is threading.main_thread():
        _C._ensureCUDADeviceGuardSet()
        return
    done = threading.Event()

    def stay() -> None:
        _C._ensureCUDADeviceGuardSet()
        done.set()
        threading.Event().wait()

    threading.Thread(target=stay, name="opwright device guard", daemon=True).start()
    done.wait()


@contextlib.contextmanager
def unlogged_fakes() -> Iterator[None]:
    """Fake tensors do not log what they raise, with a traceback, in this thread: whoever asks raises it, or does not
    mind."""
    log, mine = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def foreign(record: logging.LogRecord) -> bool:
        return record.thread != mine

    log.addFilter(foreign)
    try:
        yield
    finally:
        log.removeFilter(foreign)


def fake_errors() -> tuple[type[Exception], ...]:
    """What fake tensors raise where a result depends on values."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    return DataDependentOutputException, DynamicOutputShapeException


def import_compilers() -> None:
    """Import what compiling takes, for processes that are forked from this one."""
    import torch._dynamo
    import torch._subclasses.fake_tensor  # noqa: F401


def eval_frame() -> Any:
    """Where Dynamo keeps what becomes of a frame. Some version may have it elsewhere: whoever asks must cope."""
    return torch._C._dynamo.eval_frame


def gpu_sleep(cycles: int) -> None:
    """Keep the GPU's current stream busy for so many cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def let_counters_ask(flop_counter: Any, find: Callable[[str], Callable[..., int] | None]) -> None:
    """Let every FlopCounterMode ask for the formula of an operator that it has none for, by the operator's name: it
    copies the formulas when it is made, and gradients may be defined later."""
    kind: Any = flop_counter.FlopCounterMode
    count = kind._count_flops

    def count_all(self: Any, packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if packet not in self.flop_registry:
            formula = find(getattr(packet, "_qualified_op_name", ""))
            if formula is not None:
                self.flop_registry[packet] = formula
        return count(self, packet, out, args, kwargs)

    kind._count_flops = count_all


def unwrap_batched(tensor: torch.Tensor, level: int) -> tuple[torch.Tensor, int | None]:
    """A tensor as it is outside a vmap, and the dimension that is the batch there; None: it has none."""
    if not _C._functorch.is_batchedtensor(tensor) or _C._functorch.maybe_get_level(tensor) != level:
        return tensor, None
    return _C._functorch.get_unwrapped(tensor), _C._functorch.maybe_get_bdim(tensor)


def wrap_batched(tensor: torch.Tensor, level: int) -> Any:
    """A tensor whose first dimension is the batch, as it is inside a vmap."""
    return _C._functorch._add_batch_dim(tensor, 0, level)


@contextlib.contextmanager
def next_transform() -> Iterator[None]:
    """Leave the innermost transform of torch.func for a while."""
    layer = _C._functorch.pop_dynamic_layer_stack()
    try:
        yield
    finally:
        _C._functorch.push_dynamic_layer_stack(layer)


def register_pytree(
    kind: type, flatten: Callable[[Any], tuple[list[Any], Any]], unflatten: Callable[[Any, Any], Any], names: Any
) -> None:
    """Let compilers and exporters take instances of a class apart into tensors, `names` being those of its children."""
    pytree: Any = torch.utils._pytree

    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, context = flatten(value)
        return [(pytree.GetAttrKey(n), c) for n, c in zip(names, children, strict=True)], context

    said = f"{kind.__module__}.{kind.__qualname__}"
    pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=said, flatten_with_keys_fn=with_keys)


def torch_dispatch_rule(name: str, kind: type, rule: Callable[..., Any]) -> Callable[[], None]:
    """What torch.library.register_torch_dispatch does; what comes back takes the rule away again."""
    entry = torch._library.simple_registry.singleton.find(name)
    destroy: Callable[[], None] = entry.torch_dispatch_rules.register(kind, rule).destroy
    return destroy


def symbolic_sizes(count: int) -> tuple[Any, list[Any]]:
    """A mode of fake tensors, and sizes that are symbols in it: each two or more."""
    from torch._guards import Source
    from torch.fx.experimental import symbolic_shapes

    # Dynamo has sources too, and takes a second to import. A source's name is asked for by call in older versions.
    asked = callable(Source.name)
    env = symbolic_shapes.ShapeEnv()
    made = []
    for i in range(count):
        named: Any = (lambda self, i=i: f"size_{i}") if asked else f"size_{i}"
        source, size = type("Size", (Source,), {"name": named})(), 5 + 2 * i
        symbol = env.create_symbol(size, source=source, dynamic_dim=symbolic_shapes.DimDynamic.DYNAMIC)
        made.append(env.create_symintnode(symbol, hint=size, source=source))
    return fake_tensor_mode(shape_env=env), made


def asked_sizes(mode: Any) -> bool:
    """Whether anything depended on the value of such a size."""
    return bool(mode.shape_env.guards)
