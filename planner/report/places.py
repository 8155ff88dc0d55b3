"""Where tensors live: parameters by glob, and the borders where an activation changes its placement."""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import Placement
from planner.ir.plan import PLACEMENT_AXES, Plan
from planner.report.names import alike
from planner.report.table import Section, table


def parameters(plan: Plan) -> Iterator[Section]:
    """The placement of every parameter along the axes that have more than one rank; nothing if there is no such axis."""
    axes = [index for index, axis in enumerate(PLACEMENT_AXES) if plan.mesh.degree(axis) > 1]
    if axes:
        rows = [(name, *(str(placements[index]) for index in axes)) for name, placements in alike(plan.parameters)]
        columns = ("parameter", *(f"{PLACEMENT_AXES[index]}={plan.mesh.degree(PLACEMENT_AXES[index])}" for index in axes))
        yield table("Parameters", columns, rows, note="R: whole on every rank, S(d): a slice of dim d")


def activations(plan: Plan) -> Iterator[Section]:
    """The borders along tp, with the collective each change costs; nothing if there are none."""
    if plan.activations:
        rows = [(name, change(each.value_from, each.value), change(each.grad_from, each.grad)) for name, each in alike(plan.activations)]
        yield table("Activations that change placement along tp", ("border", "forward", "backward"), rows)


def change(before: Placement, after: Placement) -> str:
    """`P(sum) -> R: all_reduce`; the placement alone where nothing changes."""
    if before == after:
        return str(after)
    collective = _collective(before, after)
    return f"{before} -> {after}" + (f": {collective}" if collective else "")


def _collective(before: Placement, after: Placement) -> str:
    """What a redistribute runs; empty where every rank already has what it needs."""
    if before.is_partial:
        return "reduce_scatter" if after.is_shard else "all_reduce"
    if before.is_shard:
        return "all_to_all" if after.is_shard else "all_gather"
    return ""
