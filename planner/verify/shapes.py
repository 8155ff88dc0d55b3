"""`--level shapes`: the real model and plan at full size, in one process, without memory.

Of each class of alike ranks one is rehearsed: the runtime applies the plan and runs a step on tensors without data in a process group that
moves nothing. Compared are its parameters with the plan's placements, its collectives with the predicted ones, its peak with the predicted
one. Nothing is said about values: that is the level numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from planner.ir.plan import Plan
from planner.ir.verification import Check, Verification, title
from planner.runtime.check import check_model
from planner.runtime.record import compare
from planner.trace.source import ModelSource
from planner.trace.where import message_of, user_line
from planner.verify.alike import Alike, classes
from planner.verify.local_shapes import Whole, sharded_rows, wholes
from planner.verify.memory import memory_check
from planner.verify.rehearsal import Rehearsal, rehearse

Progress = Callable[[str, int, int], None]
SHOWN = 8
"""So many differences are listed."""


def verify_shapes(plan: Plan, source: ModelSource, *, progress: Progress = lambda phase, done, total: None) -> Verification:
    """The checks of this level. Raises MismatchError if the plan is for another model."""
    with torch.device("meta"):
        built = source.model()
    check_model(built, plan)
    model = wholes(built)
    alike = classes(plan.mesh, rows=sharded_rows(model, plan))
    rehearsals: list[Rehearsal] = []
    for number, each in enumerate(alike):
        progress(f"rank {each.rank} of {plan.mesh.world_size:,}, class", number + 1, len(alike))
        try:
            rehearsals.append(rehearse(plan, source, model, alike=each))
        except Exception as error:  # whatever the model, the runtime or torch raise is what the step check reports
            return Verification("shapes", title(plan), (failed_step(each, plan, error),))
    checks = (step_check(alike, plan), parameter_check(rehearsals, model), collective_check(rehearsals, plan), memory_check(rehearsals, plan))
    return Verification("shapes", title(plan), checks)


RUNS = "the runtime applies the plan and runs a step and an AdamW step at full size, on every rank"


def step_check(alike: Sequence[Alike], plan: Plan) -> Check:
    """All ranks ran."""
    names = ", ".join(f"rank {each.rank} for {each.count:,}" for each in alike[:SHOWN])
    more = f" and {len(alike) - SHOWN} more" if len(alike) > SHOWN else ""
    return Check("step", RUNS, True, f"{len(alike)} checked of {plan.mesh.world_size:,} ranks, the others are alike: {names}{more}")


def failed_step(alike: Alike, plan: Plan, error: Exception) -> Check:
    """One rank did not run."""
    where = user_line(error)
    what = str(error) if isinstance(error, ValueError) else message_of(error)
    return Check("step", RUNS, False, f"rank {alike.rank} of {plan.mesh.world_size:,}: {where and f'{where}: '}{' '.join(what.split())}")


def parameter_check(rehearsals: Sequence[Rehearsal], model: dict[str, Whole]) -> Check:
    """Shapes and dtypes on each rank, and each parameter on some stage."""
    proves = "each rank holds the parts of parameters that the placements say, and all ranks together hold every parameter"
    lines = [f"rank {each.alike.rank}: {line}" for each in rehearsals for line in each.differences]
    held = {model[fqn].fqns[0] for each in rehearsals for fqn in each.fqns}
    wanted = {whole.fqns[0] for whole in model.values()}
    lines += [f"{fqn} is on no rank" for fqn in sorted(wanted - held)]
    return Check("parameters", proves, not lines, listed(lines) or f"{len(wanted):,} parameters, as placed")


def collective_check(rehearsals: Sequence[Rehearsal], plan: Plan) -> Check:
    """The exact list."""
    proves = "a step runs exactly the predicted collectives: kind, axis, phase, bytes and number"
    lines = [
        f"rank {each.alike.rank}: {line}"
        for each in rehearsals
        for line in compare(each.collectives, plan.prediction.collectives[each.pp_rank])
    ]
    counts = ", ".join(f"{sum(c.count for c in each.collectives):,} on rank {each.alike.rank}" for each in rehearsals[:SHOWN])
    return Check("collectives", proves, not lines, listed(lines) or f"equal: {counts}")


def listed(lines: Sequence[str]) -> str:
    """The first lines, and how many there are."""

    def shown() -> Iterator[str]:
        yield from lines[:SHOWN]
        if len(lines) > SHOWN:
            yield f"and {len(lines) - SHOWN:,} more"

    return "\n".join(shown())
