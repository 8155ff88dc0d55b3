"""One step of one rank, run by the runtime itself on tensors without data: what it holds, what it sends, how much memory it takes.

The optimizer has its states before the step begins, as in every step but the first.

All microbatches but the first and the last ones are alike. Where a plan has many, two shorter steps are run, of a and of b > a microbatches,
both long enough to fill the pipeline, and what a step of m does follows:

    x(m) = x(a) + (m - a) / (b - a) (x(b) - x(a))    for the count of each collective and the bytes of each kind at the peak
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from planner.ir.plan import Plan
from planner.ir.strategy import Collective
from planner.runtime.job import Job
from planner.runtime.record import record, totals
from planner.trace.source import ModelSource
from planner.verify.alike import Alike
from planner.verify.cpu_fallback import as_on_device
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


def lengths(plan: Plan) -> tuple[int, ...]:
    """The microbatches of the steps to run: the plan's own, or two smaller numbers where these are less than half the work."""
    pp, count = plan.mesh.pp, plan.schedule.microbatches
    shorter = (2 * pp, 3 * pp) if plan.schedule.virtual > 1 else (pp + 1, pp + 2)
    return shorter if 2 * sum(shorter) < count else (count,)


def rehearse(plan: Plan, source: ModelSource, model: dict[str, Whole], *, alike: Alike) -> Rehearsal:
    """Applies the plan as rank `alike.rank`, and runs a step and an AdamW step."""
    counts = lengths(plan)
    found = [rehearse_once(shortened(plan, count), source, model, alike=alike) for count in counts]
    if len(found) == 1:
        return found[0]
    return extrapolated(found[0], found[1], steps=(plan.schedule.microbatches - counts[0]) / (counts[1] - counts[0]))


def shortened(plan: Plan, microbatches: int) -> Plan:
    """The plan with fewer microbatches in a step."""
    schedule = plan.schedule
    batch = microbatches * schedule.microbatch_size * plan.mesh.dp
    return replace(plan, schedule=replace(schedule, microbatches=microbatches, global_batch=batch))


def rehearse_once(plan: Plan, source: ModelSource, model: dict[str, Whole], *, alike: Alike) -> Rehearsal:
    """The same for a step as long as the plan says."""
    mode = Hollow()
    with warnings.catch_warnings(), fake_group(alike.rank, ranks=plan.mesh.world_size), as_on_device(plan):
        warnings.filterwarnings("ignore", module=r"torch\.")  # torch's advice is for real runs
        job = fake_job(plan, source, mode=mode)
        found = tuple(differences(job, model, rank=alike.rank))
        with mode:
            collectives, peak = step(job, fake_share(job, source, mode=mode))
        return Rehearsal(alike, job.world.coordinate("pp"), tuple(fqn for fqn, _ in job.named_parameters()), found, collectives, peak)


def step(job: Job, share: Any) -> tuple[tuple[Collective, ...], Peak]:
    """The collectives of a step on this rank's `share` of a batch, and the peak of it and of the optimizer's step after it."""
    optimizer = with_states(job)
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


def extrapolated(short: Rehearsal, longer: Rehearsal, *, steps: float) -> Rehearsal:
    """The rehearsal of a step that is longer than `short` by `steps` times what `longer` is."""
    low, high = totals(short.collectives), totals(longer.collectives)
    counts = Counter({each: round(low[each] + steps * (high[each] - low[each])) for each in low.keys() | high.keys()})
    kinds = tuple(round(a + steps * (b - a)) for a, b in zip(short.peak.kinds, longer.peak.kinds, strict=True))
    collectives = tuple(sorted(replace(each, count=count) for each, count in counts.items()))
    return replace(short, collectives=collectives, peak=Peak(sum(kinds), kinds))
