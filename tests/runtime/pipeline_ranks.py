"""Starts gloo ranks and trains a model in them under plans, for comparison with one process."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.ir.plan import Plan
from planner.ir.schedule import Action
from planner.runtime import batches, forward, gradients, shared
from planner.runtime.apply import place
from planner.runtime.materialize import start_of
from planner.runtime.pipeline import Watch, runner
from planner.runtime.split import split, stage_plan
from planner.runtime.stage import StagePart
from planner.runtime.world import start
from planner.schedules.build import build
from tests.rendezvous import shared_store


@dataclass(frozen=True)
class Case:
    """A model, the name of the module with its `inputs` and `loss`, and a plan."""

    name: str
    model: Callable[[], nn.Module]
    zoo: str
    plan: Plan
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-9


def launch(target: Callable[..., None], ranks: int, directory: Path, *args: Any) -> list[Any]:
    """Runs `target(rank, ranks, directory, *args)` in that many gloo ranks; what each left in `result(directory, rank)`."""
    mp.spawn(enter, args=(target, ranks, directory, args), nprocs=ranks)
    return [torch.load(result(directory, rank), weights_only=False) for rank in range(ranks)]


def result(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.pt"


def enter(rank: int, target: Callable[..., None], ranks: int, directory: Path, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = shared_store(directory, rank=rank, ranks=ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    target(rank, ranks, directory, *args)
    dist.barrier()
    dist.destroy_process_group()


def train_all(rank: int, ranks: int, directory: Path, cases: Sequence[Case]) -> None:
    """Leaves, per case, the largest differences from one process and what was executed."""
    torch.save({case.name: train(case) for case in cases}, result(directory, rank))


def train(case: Case, steps: int = 3) -> dict[str, Any]:
    """Trains `case` beside one process that does the same."""
    torch.set_default_dtype(case.dtype)
    torch.manual_seed(0)
    zoo, model, plan = importlib.import_module(case.zoo), case.model(), case.plan
    world = start(plan.mesh)
    part = split(model, plan, pp_rank=world.coordinate("pp"))
    reference = copy.deepcopy(model)
    plan = stage_plan(plan, part)
    place(part.module, plan, start_of(model, world.device, 0), world)
    engine = runner([part], plan, world)
    tied = shared.copies([part], world)
    shared.broadcast_values(tied)
    optimizer = optimiser(part.module, case.dtype)
    alone = optimiser(reference, case.dtype)
    worst = {"loss": 0.0, "gradient": 0.0, "weight": 0.0}
    largest = 0.0
    executed: list[Action] = []
    for step in range(steps):
        torch.manual_seed(step)
        batch = zoo.inputs(plan.schedule.global_batch, reference)
        share = batches.local_share(batch, plan, world.dp_rank)
        parts = [forward.on_mesh(each, world) for each in batches.microbatches(share, plan)]
        scale = plan.mesh.dp * plan.schedule.microbatches

        def loss(output: Any, index: int, parts: list[Any] = parts, scale: int = scale) -> Tensor:
            return forward.whole(zoo.loss(output, parts[index])) / scale

        executed.clear()
        losses = engine.step(parts, loss, watch=Watch(observe=executed.append))
        gradients.reduce_partial(tuple(part.module.named_parameters()), world)
        shared.sum_gradients(tied)
        expected = whole_step(case, reference, batch, plan)
        if part.is_last:
            total = world.sum_over(torch.stack(losses).sum(), world.data_axes)
            worst["loss"] = max(worst["loss"], float((total - expected).abs()))
        largest = max(largest, *(float(p.grad.abs().max()) for p in reference.parameters() if p.grad is not None))
        worst["gradient"] = max(worst["gradient"], difference(part, reference, lambda p: p.grad))
        for opt in (optimizer, alone):
            opt.step()
            opt.zero_grad()
        worst["weight"] = max(worst["weight"], difference(part, reference, lambda p: p))
    wanted = build(plan.schedule.name, stages=len(plan.stages), microbatches=plan.schedule.microbatches)
    sent = tuple(crossing.nbytes for port in engine.ports.values() for crossing in port.sent)
    scheduled = wanted.ranks[world.coordinate("pp")]
    return {**worst, "largest": largest, "executed": tuple(executed), "scheduled": scheduled, "sent_bytes": sent}


def optimiser(module: nn.Module, dtype: torch.dtype) -> torch.optim.Optimizer:
    """AdamW in float64; SGD in float32, which does not blow rounding up."""
    if dtype is torch.float64:
        return torch.optim.AdamW(module.parameters(), lr=1e-2)
    return torch.optim.SGD(module.parameters(), lr=1e-2)


def whole_step(case: Case, model: nn.Module, batch: Any, plan: Plan) -> Tensor:
    """Loss and gradients of the whole batch in one process, microbatch by microbatch."""
    count = plan.mesh.dp * plan.schedule.microbatches
    total = torch.zeros(())
    for each in batches.split(batch, count, plan.schedule.global_batch):
        arguments = {key: value for key, value in each.items() if key != "labels"} if isinstance(each, dict) else {}
        loss = importlib.import_module(case.zoo).loss(model(**arguments), each) / count
        loss.backward()
        total += loss.detach()
    return total


def difference(part: StagePart, reference: nn.Module, pick: Callable[[nn.Parameter], Tensor | None]) -> float:
    """The largest absolute difference over the parameters of a stage."""
    expected = dict(reference.named_parameters(remove_duplicate=False))
    return max(gap(pick(parameter), pick(expected[name])) for name, parameter in part.module.named_parameters())


def gap(found: Tensor | None, expected: Tensor | None) -> float:
    if found is None or expected is None:
        return 0.0 if found is None and expected is None else float("inf")
    whole = found.full_tensor() if isinstance(found, DTensor) else found
    return float((whole - expected).detach().abs().max())
