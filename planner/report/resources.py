"""What the plan takes: memory per rank, time per step, bytes on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from planner.ir.plan import Breakdown, MemoryKinds, Plan
from planner.ir.strategy import Collective
from planner.report import units
from planner.report.names import ranges, stage_groups
from planner.report.table import Section, table

KINDS = {
    "parameters": "param",
    "gradients": "grad",
    "optimizer": "optim",
    "activations": "activ",
    "buffers": "buffer",
    "temporary": "temp",
    "reserve": "reserve",
}
"""Short names of the kinds of memory: nine columns fit a line."""


def stages(plan: Plan) -> Iterator[Section]:
    """Where the stages begin; nothing for a single one."""
    if len(plan.stages) > 1:
        ranks = plan.mesh.pp
        rows = [
            (str(number), str(number % ranks), stage.begin or "the input", ranges(stage.modules)) for number, stage in enumerate(plan.stages)
        ]
        yield table("Stages", (">stage", ">pp rank", "begins at", "modules"), rows)


def memory(plan: Plan) -> Section:
    """Predicted memory of one rank by stage and kind, against the device's."""
    groups = stage_groups(tuple(zip(plan.prediction.memory_bytes, plan.prediction.peak_memory_bytes, strict=True)))
    unit = units.memory_unit(max(peak for _, (_, peak) in groups))
    shown = [kind.name for kind in fields(MemoryKinds) if any(getattr(kinds, kind.name) for _, (kinds, _) in groups)]
    device = plan.cluster.memory_bytes
    rows = [
        (stage, *(unit.text(getattr(kinds, kind)) for kind in shown), unit.text(peak), units.percent(peak / device) if device else "")
        for stage, (kinds, peak) in groups
    ]
    columns = (">stage", *(f">{KINDS[kind]}" for kind in shown), ">peak", ">of device")
    return table(f"Memory of one rank, {unit.name}", columns, rows, note=f"the device has {units.gib(device)}")


def time(plan: Plan) -> Section:
    """Where the step time goes; hidden communication is not in it."""
    breakdown = plan.prediction.breakdown_s
    total = breakdown.total
    parts = [(kind.name, getattr(breakdown, kind.name)) for kind in fields(Breakdown)]
    rows = [
        (name.replace("_", " "), units.duration(seconds), units.percent(seconds / total) if total else "") for name, seconds in parts if seconds
    ]
    note = "communication counts what is not hidden behind compute"
    return table("Time of one step", ("kind", ">time", ">share"), [*rows, ("total", units.duration(total), "")], note=note)


def communication(plan: Plan) -> Iterator[Section]:
    """The collectives of the busiest stage; nothing on a single device."""
    busiest = max(range(len(plan.stages)), key=lambda stage: _sent(plan.prediction.collectives[stage]))
    found = plan.prediction.collectives[busiest]
    if found:
        where = f" (stage {busiest}, which moves most)" if len(plan.stages) > 1 else ""
        yield table(f"Collectives of one rank in a step{where}", ("collective", "axis", "phase", ">count", ">bytes"), _totals(found))


def _sent(collectives: tuple[Collective, ...]) -> int:
    return sum(each.nbytes * each.count for each in collectives)


def _totals(collectives: tuple[Collective, ...]) -> list[tuple[str, ...]]:
    totals: dict[tuple[str, str, str], tuple[int, int]] = {}
    for each in collectives:
        key = (each.kind, each.axis, each.phase)
        count, nbytes = totals.get(key, (0, 0))
        totals[key] = (count + each.count, nbytes + each.count * each.nbytes)
    return [(*key, f"{count:,}", units.gib(nbytes)) for key, (count, nbytes) in sorted(totals.items())]
