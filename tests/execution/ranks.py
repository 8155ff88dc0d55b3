"""Trains cells on gloo ranks beside one process that does the same, and records what they communicate."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from planner.runtime.initialisers import initialisers
from planner.runtime.job import Job
from planner.runtime.materialize import Start, fill
from planner.runtime.record import compare, record
from planner.trace.source import ModelSource
from tests.execution.cells import Cell, source_of
from tests.rendezvous import all_arrived, shared_store

STEPS = 3
MAX_NORM = 0.5


@dataclass(frozen=True)
class Result:
    """Largest differences of one rank from one process (of gradients and their norm: relative to the largest), differences in collectives,
    the values at the end, which names are of one parameter, and the error if it failed."""

    loss: float = 0.0
    gradient: float = 0.0
    norm: float = 0.0
    weight: float = 0.0
    buffer: float = 0.0
    worst: str = ""
    collectives: tuple[str, ...] = ()
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    names: tuple[tuple[str, ...], ...] = ()
    error: str = ""

    @property
    def largest(self) -> float:
        """The largest of all differences."""
        return max(self.loss, self.gradient, self.norm, self.weight, self.buffer)


def run(cells: Sequence[Cell], *, ranks: int, directory: Path) -> list[dict[str, Result]]:
    """What each rank found, per cell."""
    mp.spawn(_enter, args=(ranks, directory, tuple(cells)), nprocs=ranks)
    return [torch.load(directory / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def _enter(rank: int, ranks: int, directory: Path, cells: tuple[Cell, ...]) -> None:
    torch.set_num_threads(1)
    store = shared_store(directory, rank=rank, ranks=ranks)
    found = {}
    for number, cell in enumerate(cells):  # each with groups of its own: hundreds of open ones would slow everything down
        own = dist.PrefixStore(str(number), store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
        try:
            found[cell.name] = train(cell)
        except Exception:  # a cell that fails must not hide the others
            found[cell.name] = Result(error=traceback.format_exc(limit=-6))
        all_arrived(store, f"done {number}", ranks)
        dist.destroy_process_group()
    torch.save(found, directory / f"rank{rank}.pt")


def train(cell: Cell) -> Result:
    """Three steps of both; collectives of the second step."""
    torch.set_default_dtype(getattr(torch, cell.dtype))
    torch.manual_seed(0)
    source = source_of(cell.target, cell.dtype)
    model, alone = STARTS[cell.start](source)
    job = parallelize(model, cell.plan, loss=source.loss, weight=source.weight)
    optimizers = (_optimizer(job.parameters(), cell.dtype), _optimizer(alone.parameters(), cell.dtype))
    loss = gradient = norm = 0.0
    worst, differences = "", ()
    for step in range(STEPS):
        torch.manual_seed(step + 1)
        batch = source.inputs(cell.plan.schedule.global_batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        recorder = record(job)
        with recorder:
            mean = job.step(job.local_batch(batch))
        value = _train_alone(alone, source, batch, parts=cell.plan.schedule.microbatches * cell.plan.mesh.dp if cell.divided else 1)
        loss = max(loss, abs(float(mean) - value) / abs(value))
        largest = max(float(p.grad.abs().max()) for p in alone.parameters() if p.grad is not None)
        for name, difference in _gradients(job, alone, largest):
            if difference > gradient:
                gradient, worst = difference, name
        if step == 1:
            predicted = cell.plan.prediction.collectives[job.world.coordinate("pp")]
            differences = compare(recorder.collectives(), predicted)
        expected_norm = float(nn.utils.clip_grad_norm_(alone.parameters(), MAX_NORM))
        norm = max(norm, abs(float(job.clip_grad_norm_(MAX_NORM)) - expected_norm) / expected_norm)
        for optimizer in optimizers:
            optimizer.step()
    values = {fqn: _whole(p) for fqn, p in job.named_parameters()}
    weights = [_difference(value, alone.get_parameter(fqn), 1.0) for fqn, value in values.items()]
    named = [(fqn, b) for part in job.parts for fqn, b in part.named_buffers() if not cell.divided]  # each rank has statistics of its own
    buffers = [_difference(b, alone.get_buffer(fqn), 1.0) for fqn, b in named]
    return Result(loss, gradient, norm, max(weights, default=0.0), max(buffers, default=0.0), worst, differences, values, _names(job))


def _train_alone(alone: nn.Module, source: ModelSource, batch: dict[str, torch.Tensor], *, parts: int) -> float:
    """The loss of one process, and its gradients, with the batch in equal `parts`."""
    value, whole = 0.0, source.weight(batch)
    for part in (dict(zip(batch, piece, strict=True)) for piece in zip(*(tensor.chunk(parts) for tensor in batch.values()), strict=True)):
        args, kwargs = forward_arguments(alone.forward, part)
        loss = source.loss(alone(*args, **kwargs), part) * (source.weight(part) / whole)
        loss.backward()
        value += float(loss.detach())
    return value


def _built(source: ModelSource) -> tuple[nn.Module, nn.Module]:
    model = source.model()
    return model, copy.deepcopy(model)


def _on_meta(source: ModelSource) -> tuple[nn.Module, nn.Module]:
    """One left on the meta device, one filled from the seed that `parallelize` takes."""
    with torch.device("meta"):
        model, alone = source.model(), source.model()
    fill(alone, [name for name, _ in alone.named_modules()], Start(torch.device("cpu"), 0, initialisers(alone)))
    return model, alone


STARTS = {"built": _built, "meta": _on_meta}


def _names(job: Job) -> tuple[tuple[str, ...], ...]:
    """The names of each parameter of this rank, tied ones together."""
    found: dict[int, list[str]] = {}
    for part in job.parts:
        for fqn, parameter in part.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(fqn)
    return tuple(sorted(tuple(names) for names in found.values()))


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


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def _difference(part: torch.Tensor, whole: torch.Tensor, scale: float) -> float:
    """The largest absolute difference over `scale`; of booleans, whether any differs."""
    full, expected = _whole(part), whole.detach()
    difference = full != expected if full.dtype == torch.bool else full - expected
    return float(difference.abs().max() / scale) if difference.dtype != torch.bool else float(difference.any())
