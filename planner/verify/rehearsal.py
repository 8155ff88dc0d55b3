"""One step of one rank, run by the runtime itself on tensors without data: what it holds, what it sends, how much memory it takes.

The optimizer has its states before the step begins, as in every step but the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from planner.ir.plan import Plan
from planner.ir.strategy import Collective
from planner.runtime.job import Job
from planner.runtime.record import record
from planner.trace.source import ModelSource
from planner.verify.alike import Alike
from planner.verify.fake_job import Hollow, fake_group, fake_job, fake_share
from planner.verify.ledger import Ledger, Peak, states
from planner.verify.local_shapes import Whole, differences


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What one rank did: its pipeline position, parameters by name, those that differ from the plan, its collectives and its peak."""

    alike: Alike
    pp_rank: int
    fqns: tuple[str, ...]
    differences: tuple[str, ...]
    collectives: tuple[Collective, ...]
    peak: Peak


def rehearse(plan: Plan, source: ModelSource, model: dict[str, Whole], *, alike: Alike) -> Rehearsal:
    """Applies the plan as rank `alike.rank`, and runs a step and an AdamW step."""
    mode = Hollow()
    with fake_group(alike.rank, ranks=plan.mesh.world_size):
        job = fake_job(plan, source, mode=mode)
        found = tuple(differences(job, model, rank=alike.rank))
        with mode:
            collectives, peak = step(job, source, mode=mode)
        return Rehearsal(alike, job.world.coordinate("pp"), tuple(fqn for fqn, _ in job.named_parameters()), found, collectives, peak)


def step(job: Job, source: ModelSource, *, mode: Hollow) -> tuple[tuple[Collective, ...], Peak]:
    """The collectives of a step, and the peak of it and of the optimizer's step after it."""
    optimizer = with_states(job)
    share = fake_share(job, source, mode=mode)
    ledger, recorder = Ledger(), record(job)
    ledger.enter(list(job.parameters()), kind="parameters")
    ledger.enter([buffer for part in job.parts for buffer in part.buffers()], kind="buffers")
    ledger.enter(states(optimizer), kind="optimizer")
    ledger.enter(share, kind="activations")
    with ledger.open():
        with recorder:
            job.step(share)
        ledger.enter([parameter.grad for parameter in job.parameters() if parameter.grad is not None], kind="gradients")
        optimizer.step()
    return recorder.collectives(), ledger.peak()


def with_states(job: Job) -> torch.optim.Optimizer:
    """AdamW that has stepped once."""
    trained = [parameter for parameter in job.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer
