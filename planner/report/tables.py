"""The whole explanation of a plan, in the order in which people ask: what, how much, where, why."""

from __future__ import annotations

from rich.console import RenderableType

from planner.ir.plan import Plan
from planner.report.choice import provenance, ruled_out, runners_up, search
from planner.report.overview import overview
from planner.report.places import activations, parameters
from planner.report.resources import communication, memory, stages, time


def tables(plan: Plan) -> list[RenderableType]:
    """Every table that has something to say."""
    return [
        overview(plan),
        *stages(plan),
        memory(plan),
        time(plan),
        *communication(plan),
        *parameters(plan),
        *activations(plan),
        *runners_up(plan),
        *ruled_out(plan),
        search(plan),
        *provenance(plan),
    ]
