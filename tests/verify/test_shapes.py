"""The level shapes: plans of the planner are proven, falsified ones are not, and the check that fails is the right one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.ir.options import Options
from planner.ir.placement import Replicate
from planner.ir.plan import Plan
from planner.ir.verification import Verification
from planner.verify.shapes import verify_shapes
from tests.execution.cells import planned, source_of


@cache
def plan_of(
    target: str, ranks: int, zero: int | None = None, recompute: str = "none", schedule: str = "auto", compute: str = "", **mesh: int
) -> Plan:
    options = Options(mesh=tuple(mesh.items()), zero=zero, recompute=recompute, schedule=schedule, global_batch=2 * ranks)
    return planned(target, ranks=ranks, dtype="float32", options=options, families={}, compute=compute).plan


def verified(plan: Plan, target: str = "gpt.py:tiny") -> Verification:
    return verify_shapes(plan, source_of(target, "float32"))


def failed(verification: Verification) -> tuple[str, ...]:
    return tuple(check.name for check in verification.checks if not check.ok)


def test_plans_of_the_planner_are_proven() -> None:
    """All four checks hold for a plan over tp and dp_shard on 16 ranks."""
    verification = verified(plan_of("gpt.py:tiny", 16, zero=3, tp=2, dp_shard=8))
    assert (("step", "parameters", "collectives", "memory"), ()) == (tuple(check.name for check in verification.checks), failed(verification))


def test_a_wrong_placement_is_found() -> None:
    """A parameter that the plan keeps whole and the runtime shards."""
    plan = plan_of("gpt.py:tiny", 16, zero=3, tp=2, dp_shard=8)
    whole = (Replicate(), Replicate(), Replicate())
    parameters = tuple((glob, whole if glob == "norm.weight" else placements) for glob, placements in plan.parameters)
    assert ("parameters",) == failed(verified(replace(plan, parameters=parameters)))
