"""A small transformer with operators of ours, trained under the layouts that its arguments name; run by torchrun.

Prints the losses and how far the parameters are from those of one process after some steps, and whether a checkpoint
of one layout gives the same losses under the next.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import opwright as ow
from tests.kit.distributed import ranks

WIDTH, HEADS, TOKENS, LENGTH, BATCH = 16, 4, 11, 6, 8
STEPS = 3


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (ow.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        # Under tensor parallelism these have as many heads as their device has.
        q, k, v = (each(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.q, self.k, self.v))
        seen = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1) @ v
        mixed: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.first, self.second = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = ow.nn.Linear(WIDTH, 4 * WIDTH), ow.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = ow.axpby(x, self.attention(self.first(x)), b=0.5)
        wide = self.up(self.second(x))
        out: Tensor = ow.axpby(x, self.down(wide * ow.sigmoid(ow.scale(wide, 1.7))), b=0.5)
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, WIDTH), ow.nn.Linear(WIDTH, TOKENS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


PARALLEL = {
    "attention.q": ColwiseParallel(),
    "attention.k": ColwiseParallel(),
    "attention.v": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "up": ColwiseParallel(use_local_output=False),  # DTensors go through the elementwise operators
    "down": RowwiseParallel(),
}


def made() -> Model:
    torch.manual_seed(0)
    return Model()


def laid(layout: str) -> tuple[nn.Module, slice]:
    """The model under a layout, and the part of the batch that this process has."""
    world, rank = dist.get_world_size(), dist.get_rank()
    model: nn.Module = made()

    def part(index: int, count: int) -> slice:
        return slice(index * BATCH // count, (index + 1) * BATCH // count)

    if layout == "ddp":
        return DistributedDataParallel(model), part(rank, world)
    if layout == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        return sharded(model, mesh), part(rank, world)
    if layout == "tp":
        return parallel(model, init_device_mesh("cpu", (world,))), slice(None)
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "model"))
    model = sharded(parallel(model, mesh["model"]), mesh["data"])
    return model, part(mesh.get_local_rank("data"), 2)


def parallel(model: nn.Module, mesh: Any) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        parallelize_module(block, mesh, PARALLEL)
    return model


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def steps(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randint(TOKENS, (BATCH, LENGTH + 1), generator=generator) for _ in range(count)]
    return [(t[:, :-1], t[:, 1:]) for t in draws]


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def train(model: nn.Module, mine: slice) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for tokens, targets in steps(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, tokens[mine], targets[mine])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(averaged(loss.detach()))
    return losses


def averaged(loss: Tensor) -> float:
    total = loss.clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The parameters, each whole."""
    found = {}
    for name, p in model.named_parameters():
        full = p.detach()
        if isinstance(full, DTensor):
            full = full.redistribute(placements=[Replicate()] * full.device_mesh.ndim).to_local()
        found[name.removeprefix("module.")] = full
    return found


def evaluate(model: nn.Module, mine: slice) -> float:
    ((tokens, targets),) = steps(1)
    with torch.no_grad():
        return averaged(loss_of(model, tokens[mine], targets[mine]))


def run(layouts: list[str]) -> dict[str, Any]:
    """What becomes of the model under each layout; a checkpoint of the last is loaded under the first."""
    alone = made()
    found: dict[str, Any] = {"alone": {"losses": train(alone, slice(None))}}
    trained = {}
    for layout in layouts:
        model, mine = trained[layout] = laid(layout)
        losses = train(model, mine)
        expected, got = whole(alone), whole(model)
        assert expected.keys() == got.keys()
        apart = max(float((got[n] - expected[n]).abs().max()) for n in expected)
        kinds = sorted({type(p).__name__ for m in model.modules() for p in m.parameters(recurse=False)})
        found[layout] = {"losses": losses, "apart": apart, "parameters": kinds}
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    folder = Path(shared[0]) / "checkpoint"
    state_dict_saver.save({"model": get_model_state_dict(trained[layouts[-1]][0])}, checkpoint_id=folder)
    fresh, mine = laid(layouts[0])
    state = {"model": get_model_state_dict(fresh)}
    state_dict_loader.load(state, checkpoint_id=folder)
    set_model_state_dict(fresh, state["model"])
    found["checkpoint"] = {"loss": evaluate(fresh, mine), "expected": evaluate(alone, slice(None))}
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(shared[0])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("layouts", nargs="+", choices=["ddp", "fsdp", "tp", "fsdp+tp"])
    dist.init_process_group("gloo")
    told = run(parser.parse_args().layouts)
    if dist.get_rank() == 0:
        print(json.dumps(told))
    ranks.leave()
