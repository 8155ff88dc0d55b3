"""Trains a model as a job in every rank, beside one process that does the same."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from planner.ir.batch import forward_arguments
from planner.ir.plan import Plan
from planner.runtime.job import Job
from planner.runtime.record import record
from tests.runtime.pipeline_ranks import result

STEPS = 3


@dataclass(frozen=True)
class Cell:
    """A model, the module with its `inputs`, `loss` and `weight`, and how to plan it."""

    name: str
    model: Callable[[], nn.Module]
    zoo: str
    plan: Callable[[nn.Module, Any], Plan]
    dtype: torch.dtype = torch.float64


def train_all(rank: int, ranks: int, directory: Path, cells: Sequence[Cell]) -> None:
    """Leaves, per cell, the largest differences from one process and the collectives of the last step."""
    torch.save({cell.name: train(cell) for cell in cells}, result(directory, rank))


def train(cell: Cell) -> dict[str, Any]:
    torch.set_default_dtype(cell.dtype)
    zoo = importlib.import_module(cell.zoo)
    torch.manual_seed(0)
    model = cell.model()
    alone = copy.deepcopy(model)
    plan = cell.plan(model, zoo)
    job = autopar.parallelize(model, plan, loss=zoo.loss, weight=getattr(zoo, "weight", None))
    ours, theirs = optimizer(job.parameters(), cell.dtype), optimizer(alone.parameters(), cell.dtype)
    worst = dict.fromkeys(("loss", "gradient", "norm", "weight"), 0.0)
    for step in range(STEPS):
        batch = make_batch(zoo, plan, alone, step)
        with record(job) as recorder:
            found = job.step(job.local_batch(batch))
        expected = whole_step(zoo, alone, batch)
        widen(worst, "loss", found - expected)
        widen(worst, "gradient", *differences(job, alone, lambda p: p.grad))
        widen(worst, "norm", job.clip_grad_norm_(0.1) - nn.utils.clip_grad_norm_(alone.parameters(), 0.1))
        for opt in (ours, theirs):
            opt.step()
            opt.zero_grad()
        widen(worst, "weight", *differences(job, alone, lambda p: p.detach()))
    return {**worst, "collectives": recorder.collectives(), "parameters": [name for name, _ in job.named_parameters()]}


def make_batch(zoo: Any, plan: Plan, model: nn.Module, step: int) -> Any:
    """A global batch; tokens are ignored unevenly, so that ranks and microbatches weigh differently."""
    torch.manual_seed(step)
    batch = zoo.inputs(plan.schedule.global_batch, model)
    if "labels" in batch:
        batch["labels"][0, :5] = -100
        batch["labels"][3] = -100
    return batch


def optimizer(parameters: Any, dtype: torch.dtype) -> torch.optim.Optimizer:
    """AdamW in float64; SGD in float32, because AdamW blows the rounding of small gradients up."""
    if dtype is torch.float64:
        return torch.optim.AdamW(parameters, lr=1e-2)
    return torch.optim.SGD(parameters, lr=1e-1)


def whole_step(zoo: Any, model: nn.Module, batch: Any) -> Tensor:
    """Loss and gradients of the whole batch at once."""
    args, kwargs = forward_arguments(model.forward, batch)
    loss = zoo.loss(model(*args, **kwargs), batch)
    loss.backward()
    return loss.detach()


def differences(job: Job, alone: nn.Module, pick: Callable[[nn.Parameter], Tensor | None]) -> list[Tensor]:
    """Differences of this rank's parameters, put together, from those of one process."""
    expected = dict(alone.named_parameters(remove_duplicate=False))
    gaps = []
    for name, parameter in job.named_parameters():
        found, wanted = pick(parameter), pick(expected[name])
        assert found is not None, name
        assert wanted is not None, name
        gaps.append((found.full_tensor() if isinstance(found, DTensor) else found) - wanted)
    return gaps


def widen(worst: dict[str, float], measure: str, *gaps: Tensor) -> None:
    worst[measure] = max(worst[measure], *(float(gap.abs().max()) for gap in gaps))
