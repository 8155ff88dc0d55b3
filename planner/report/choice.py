"""Why this plan: the runners-up and why they lost, what was ruled out, and how far the search went."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group

from planner.ir.mesh import Mesh
from planner.ir.plan import Alternative, Plan, ScheduleInfo
from planner.report import units
from planner.report.table import Section, facts, table


def runners_up(plan: Plan) -> Iterator[Section]:
    """The best other plans, this one first."""
    if plan.alternatives:
        recompute = "full" if any(policy == "full" for _, policy in plan.recompute) else "none"
        chosen = (
            describe(plan.mesh, plan.schedule, recompute),
            units.duration(plan.prediction.step_time_s),
            units.gib(max(plan.prediction.peak_memory_bytes)),
            "chosen",
        )
        rows = [chosen, *(_row(each) for each in plan.alternatives)]
        yield table("Runners-up", ("plan", ">step", ">peak", "why it lost"), rows)


def ruled_out(plan: Plan) -> Iterator[Section]:
    """What the model or the machine does not allow."""
    if plan.illegal:
        yield table("Ruled out", ("what", "why"), [(each.what, each.why) for each in plan.illegal])


def search(plan: Plan) -> Group:
    """Counts of candidates and the proven bound."""
    found = plan.search
    fate = (
        f"{found.candidates:,}: {found.illegal:,} illegal, {found.bounded_away:,} cut by their bound, {found.out_of_memory:,} out of memory, "
        f"{found.solved:,} solved"
    )
    bound = f"no plan is predicted below {units.duration(found.bound_s)}: at most {units.percent(found.gap)} of this step could be saved"
    rows = [("candidates", fate), ("variables", f"{found.variables:,}"), ("bound", bound), ("ended by", found.ended_by)]
    return facts("Search", rows)


def provenance(plan: Plan) -> Iterator[Group]:
    """Where and how the plan was made."""
    if plan.provenance:
        yield facts("Provenance", plan.provenance)


def describe(mesh: Mesh, schedule: ScheduleInfo, recompute: str) -> str:
    """`pp=2 tp=4, 1f1b, 8 x 2, ZeRO-1, recompute full`."""
    order = f"{schedule.name}, " if mesh.pp > 1 else ""
    policy = f", recompute {recompute}" if recompute != "none" else ""
    zero = f", ZeRO-{schedule.zero}" if mesh.dp > 1 else ""
    return f"{mesh}, {order}{schedule.microbatches} x {schedule.microbatch_size}{zero}{policy}"


def _row(alternative: Alternative) -> tuple[str, ...]:
    return (
        describe(alternative.mesh, alternative.schedule, alternative.recompute),
        units.duration(alternative.step_time_s),
        units.gib(alternative.peak_memory_bytes),
        alternative.why,
    )
