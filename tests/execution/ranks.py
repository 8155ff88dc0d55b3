"""Trains cells on gloo ranks beside one process that does the same, and records what they communicate."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.tensor import DTensor

from planner.ir.batch import forward_arguments
from planner.runtime.apply import parallelize
from planner.runtime.job import Job
from planner.runtime.record import compare, record
from tests.execution.cells import Cell, source_of

STEPS = 3


@dataclass(frozen=True)
class Result:
    """Largest differences of one rank from one process (of gradients: over the largest gradient), differences in collectives, and the error
    if it failed."""

    loss: float = 0.0
    gradient: float = 0.0
    weight: float = 0.0
    worst: str = ""
    collectives: tuple[str, ...] = ()
    error: str = ""


def run(cells: Sequence[Cell], *, ranks: int, directory: Path) -> list[dict[str, Result]]:
    """What each rank found, per cell."""
    mp.spawn(_enter, args=(ranks, directory, tuple(cells)), nprocs=ranks)
    return [torch.load(directory / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def _enter(rank: int, ranks: int, directory: Path, cells: tuple[Cell, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    found = {}
    for cell in cells:
        try:
            found[cell.name] = train(cell)
        except Exception:  # a cell that fails must not hide the others
            found[cell.name] = Result(error=traceback.format_exc(limit=-6))
    torch.save(found, directory / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def train(cell: Cell) -> Result:
    """Three steps of both; collectives of the second step."""
    torch.set_default_dtype(getattr(torch, cell.dtype))
    torch.manual_seed(0)
    source = source_of(cell.target, cell.dtype)
    model = source.model()
    alone = copy.deepcopy(model)
    job = parallelize(model, cell.plan, loss=source.loss, weight=source.weight)
    optimizers = (_optimizer(job.parameters(), cell.dtype), _optimizer(alone.parameters(), cell.dtype))
    loss = gradient = 0.0
    worst, differences = "", ()
    for step in range(STEPS):
        torch.manual_seed(step + 1)
        batch = source.inputs(cell.plan.schedule.global_batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        recorder = record(job)
        with recorder:
            mean = job.step(job.local_batch(batch))
        args, kwargs = forward_arguments(alone.forward, batch)
        expected = source.loss(alone(*args, **kwargs), batch)
        expected.backward()
        value = float(expected.detach())
        loss = max(loss, abs(float(mean) - value) / abs(value))
        largest = max(float(p.grad.abs().max()) for p in alone.parameters() if p.grad is not None)
        for name, difference in _gradients(job, alone, largest):
            if difference > gradient:
                gradient, worst = difference, name
        if step == 1:
            predicted = cell.plan.prediction.collectives[job.world.coordinate("pp")]
            differences = compare(recorder.collectives(), predicted)
        for optimizer in optimizers:
            optimizer.step()
    weights = [_difference(p, alone.get_parameter(fqn), 1.0) for fqn, p in job.named_parameters()]
    return Result(loss, gradient, max(weights), worst, differences)


def _optimizer(parameters: Any, dtype: str) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(parameters), lr=1e-3) if dtype == "float64" else torch.optim.SGD(list(parameters), lr=1e-2)


def _gradients(job: Job, alone: nn.Module, scale: float) -> list[tuple[str, float]]:
    found = []
    for fqn, parameter in job.named_parameters():
        expected = alone.get_parameter(fqn).grad
        if expected is not None:
            assert parameter.grad is not None, fqn
            found.append((fqn, _difference(parameter.grad, expected, scale)))
    return found


def _difference(part: torch.Tensor, whole: torch.Tensor, scale: float) -> float:
    """The largest absolute difference over `scale`."""
    full = part.detach().full_tensor() if isinstance(part, DTensor) else part.detach()
    return float((full - whole.detach()).abs().max() / scale)
