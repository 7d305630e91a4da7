"""What PyTorch has and does not promise: every private name of its Python that the toolkit uses. No other file has one.

All of them were seen in torch 2.10.0, 2.11.0, 2.13.0 and 2.15.0, the versions that the tests have run with (`make
test-versions`); what is only in some says so.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
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


@functools.cache
def dtensor() -> Any:
    """What DTensor is made of. Only for who has met one: it imports torch.distributed."""
    from types import SimpleNamespace

    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor import _op_schema as schema
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
    from torch.distributed.tensor.placement_types import _StridedShard

    try:  # strategies for one dimension of a mesh, since torch 2.11
        from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder, _SingleDimStrategyInfo
    except ImportError:
        _ShardingPlaceholder = _SingleDimStrategyInfo = None  # type: ignore[assignment,misc]
    dispatcher = DTensor._op_dispatcher

    def uneven(function: Any) -> Any:
        """Where it can be told, pieces may be empty."""
        can = function is not None and "allow_uneven_sharding" in inspect.signature(function).parameters
        return functools.partial(function, allow_uneven_sharding=True) if can else function

    return SimpleNamespace(
        DTensor=DTensor, Partial=Partial, Replicate=Replicate, Shard=Shard, StridedShard=_StridedShard,
        Spec=DTensorSpec, Meta=TensorMeta, OpSchema=schema.OpSchema, OpSpec=schema.OpSpec,
        OpStrategy=schema.OpStrategy, SchemaInfo=schema.RuntimeSchemaInfo,
        expand=_priced(uneven(expand_to_full_mesh_op_strategy)), SingleDim=uneven(_SingleDimStrategyInfo),
        Placeholder=_ShardingPlaceholder,
        dispatcher=dispatcher, propagator=dispatcher.sharding_propagator,
    )  # fmt: skip


def _priced(expand: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves out the strategies that torch 2.10 cannot price: to or from pieces in strides, but where nothing moves."""
    if torch.__version__ >= (2, 11):  # type: ignore[operator]  # its stub is a str
        return expand

    def run(mesh: Any, schema: Any, rows: Any, **options: Any) -> Any:
        given = [s.strategies[0].output_spec for s in (*schema.args_strategy, *schema.kwargs_strategy)]

        def has_price(inputs: Any, outputs: Any) -> bool:
            return all(
                s.placements == g.placements or None not in (s.shard_order, g.shard_order)
                for s, g in zip(inputs, given, strict=True)
            )

        return expand(mesh, schema, rows, is_valid_strategy_cb=has_price, **options)

    return run


def dispatch_dtensor(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What DTensor does with a call, whatever rules in Python there are for it."""
    dispatcher = dtensor().dispatcher
    kwargs = {name: tuple(v) if isinstance(v, list) else v for name, v in kwargs.items()}  # it hashes them
    if hasattr(dispatcher, "dispatch"):  # before it went to C++, which asks those rules first
        return dispatcher.dispatch(function, args, kwargs)
    call = dispatcher.unwrap_to_op_info(function, args, kwargs)
    dispatcher.sharding_propagator.propagate(call)
    results = dispatcher._dispatch_get_local_results_slow_path(function, args, call)
    return dispatcher.wrap(results, call.output_sharding.output_spec)


def forget_strategies() -> None:
    """Let DTensor ask anew how operators may be sharded."""
    dtensor().propagator.propagate_op_sharding.cache_clear()
    clear = getattr(_C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()


def backless_mesh(*sizes: int) -> Any:
    """A mesh of devices that nobody talks to, for asking DTensor what it would do."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh("cpu", torch.arange(math.prod(sizes)).view(sizes), _init_backend=False, _rank=0)


def ranks_of_group(name: str) -> list[int]:
    """The ranks of a process group."""
    import torch.distributed as dist

    group = _C._distributed_c10d._resolve_process_group(name)
    return list(dist.get_process_group_ranks(group))


def torch_dispatch_rule(name: str, kind: type, rule: Callable[..., Any]) -> Callable[[], None]:
    """What torch.library.register_torch_dispatch does; what comes back takes the rule away again."""
    entry = torch._library.simple_registry.singleton.find(name)
    destroy: Callable[[], None] = entry.torch_dispatch_rules.register(kind, rule).destroy
    return destroy


def fall_back(run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any], signal: type[NotImplementedError]) -> bool:
    """Let `run` answer the calls of DTensors for which an operator's strategy raises `signal`, as PyTorch decomposes
    those for which it knows none. False: this PyTorch asks nowhere that could be watched."""
    dispatcher, name = dtensor().dispatcher, "_propagate_op_sharding_dispatch_slow_path"
    ask = getattr(dispatcher, name, None)
    if ask is None or hasattr(dispatcher, "dispatch"):
        return False

    def answer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *rest: Any) -> Any:
        try:
            return ask(function, args, kwargs, *rest)
        except signal:
            return run(function, args, kwargs)

    setattr(dispatcher, name, answer)
    return True


def cheapest(strategies: Any, given: Iterable[Any]) -> Any:
    """The strategy that DTensor would choose among these for tensors with these specs."""
    from types import SimpleNamespace

    from torch.distributed.tensor import _sharding_prop

    schema: Any = SimpleNamespace(args_spec=tuple(given))  # all that it is asked for

    choose = getattr(_sharding_prop, "_select_min_cost_strategy", None) or dtensor().propagator._select_strategy
    return choose(strategies, schema)


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


@contextlib.contextmanager
def simulated_ranks(count: int) -> Iterator[Callable[[Callable[[int, str], Any]], list[Any]]]:
    """What runs a function once for each of so many ranks, each a thread of this process, with its number and the name
    of their process group. PyTorch's own tests simulate ranks so."""
    import torch.distributed as dist
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    isolate = _C._distributed_c10d._set_thread_isolation_mode
    lasting_device_guard()
    isolate(True)
    if not hasattr(threaded.ThreadLocalWorld, "comms"):  # torch 2.11 and 2.12 ask for them when a group is destroyed
        setattr(threaded.ThreadLocalWorld, "comms", [])  # noqa: B010
    multithreaded = torch.autograd.is_multithreading_enabled()  # which is left switched off before torch 2.13
    threaded._install_threaded_pg()

    def run(function: Callable[[int, str], Any]) -> list[Any]:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        found, errors = [None] * count, list[BaseException]()

        def one(rank: int) -> None:
            try:
                dist.init_process_group("threaded", rank=rank, world_size=count, store=store)
                found[rank] = function(rank, dist.group.WORLD.group_name)  # type: ignore[union-attr]
            except BaseException as e:
                threaded.ProcessLocalGroup.exception_handle(e)  # nobody waits for one that is gone
                errors.append(e)
            finally:
                dist.destroy_process_group()

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        threaded.ProcessLocalGroup.reset()
        if errors:
            raise errors[0]
        return found

    try:
        yield run
    finally:
        threaded._uninstall_threaded_pg()
        torch.autograd.set_multithreading_enabled(multithreaded)
        isolate(False)
