"""The step of a rehearsal, run for real on gloo ranks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from planner.ir.plan import Plan
from planner.ir.strategy import Collective
from planner.runtime.apply import parallelize
from planner.verify.ledger import Peak
from planner.verify.rehearsal import step
from tests.execution.cells import source_of
from tests.rendezvous import all_arrived, shared_store

Found = tuple[tuple[Collective, ...], Peak]


def run(plans: tuple[Plan, ...], target: str, *, ranks: int, directory: Path) -> list[list[Found]]:
    """What each rank recorded, per plan."""
    mp.spawn(_enter, args=(ranks, directory, plans, target), nprocs=ranks)
    return [torch.load(directory / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def _enter(rank: int, ranks: int, directory: Path, plans: tuple[Plan, ...], target: str) -> None:
    torch.set_num_threads(1)
    store = shared_store(directory, rank=rank, ranks=ranks)
    found = []
    for number, plan in enumerate(plans):
        own = dist.PrefixStore(str(number), store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
        found.append(_step(plan, target, rank))
        all_arrived(store, f"done {number}", ranks)
        dist.destroy_process_group()
    torch.save(found, directory / f"rank{rank}.pt")


def _step(plan: Plan, target: str, rank: int) -> Found:
    source = source_of(target, "float32")
    torch.manual_seed(0)
    job = parallelize(source.model, plan, loss=source.loss, weight=source.weight)
    share = job.local_batch(source.inputs(plan.schedule.global_batch))
    return step(job, {name: tensor.clone() for name, tensor in share.items()})
