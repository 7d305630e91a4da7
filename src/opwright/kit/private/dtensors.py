"""What DTensor and torch.distributed have and do not promise. Nothing of it is imported before somebody asks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.torch_version import TorchVersion

from opwright.kit.private import lasting_device_guard

_C: Any = torch._C


@functools.cache
def parts() -> Any:
    """What DTensor is made of. Only for who has met one: it imports torch.distributed."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor import _op_schema as schema
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
    from torch.distributed.tensor.placement_types import _StridedShard

    expand: Any = expand_to_full_mesh_op_strategy
    if "allow_uneven_sharding" in inspect.signature(expand).parameters:
        expand = functools.partial(expand, allow_uneven_sharding=True)  # pieces may be empty
    dispatcher = DTensor._op_dispatcher
    return SimpleNamespace(
        DTensor=DTensor, Partial=Partial, Replicate=Replicate, Shard=Shard, StridedShard=_StridedShard,
        Spec=DTensorSpec, Meta=TensorMeta, OpSchema=schema.OpSchema, OpSpec=schema.OpSpec,
        OpStrategy=schema.OpStrategy, SchemaInfo=schema.RuntimeSchemaInfo,
        expand=_priced(expand),
        dispatcher=dispatcher, propagator=dispatcher.sharding_propagator,
    )  # fmt: skip


def _priced(expand: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves out the strategies that torch 2.10 cannot price: to or from pieces in strides, but where nothing moves."""
    if TorchVersion(torch.__version__) >= "2.11":
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


def dispatch(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What DTensor does with a call, whatever rules in Python there are for it."""
    dispatcher = parts().dispatcher
    kwargs = {name: tuple(v) if isinstance(v, list) else v for name, v in kwargs.items()}  # it hashes them
    if hasattr(dispatcher, "dispatch"):  # before it went to C++, which asks those rules first
        return dispatcher.dispatch(function, args, kwargs)
    call = dispatcher.unwrap_to_op_info(function, args, kwargs)
    dispatcher.sharding_propagator.propagate(call)
    results = dispatcher._dispatch_get_local_results_slow_path(function, args, call)
    return dispatcher.wrap(results, call.output_sharding.output_spec)


def forget_strategies() -> None:
    """Let DTensor ask anew how operators may be sharded."""
    parts().propagator.propagate_op_sharding.cache_clear()
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


def fall_back(run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any], signal: type[NotImplementedError]) -> bool:
    """Let `run` answer the calls of DTensors for which an operator's strategy raises `signal`, as PyTorch decomposes
    those for which it knows none. False: this PyTorch asks nowhere that could be watched."""
    dispatcher, name = parts().dispatcher, "_propagate_op_sharding_dispatch_slow_path"
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

    choose = getattr(_sharding_prop, "_select_min_cost_strategy", None) or parts().propagator._select_strategy
    return choose(strategies, schema)


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
