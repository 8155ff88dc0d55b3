"""The level shapes: plans of the planner are proven, falsified ones are not, and the check that fails is the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from planner.errors import MismatchError
from planner.ir.family import GraphFamily
from planner.ir.options import Options
from planner.ir.placement import Replicate, Shard
from planner.ir.plan import Plan
from planner.ir.verification import Verification
from planner.verify.alike import Alike
from planner.verify.local_shapes import wholes
from planner.verify.rehearsal import Rehearsal, rehearse
from planner.verify.shapes import verify_shapes
from tests.execution.cells import planned, source_of
from tests.verify.real_ranks import run

FAMILIES: dict[tuple[str, str], GraphFamily] = {}
CHECKS = ("step", "parameters", "collectives", "memory")
TARGET = "gpt.py:tiny"


@cache
def plan_of(
    target: str, ranks: int, *, batch: int = 0, compute: str = "", zero: int | None = None, recompute: str = "none", **mesh: int
) -> Plan:
    options = Options(mesh=tuple(mesh.items()), zero=zero, recompute=recompute, global_batch=batch or 2 * ranks)
    return planned(target, ranks=ranks, dtype="float32", options=options, families=FAMILIES, compute=compute).plan


def verified(plan: Plan, target: str = TARGET) -> Verification:
    return verify_shapes(plan, source_of(target, "float32"))


def failed(verification: Verification) -> tuple[str, ...]:
    return tuple(check.name for check in verification.checks if not check.ok)


def rehearsed(plan: Plan, rank: int) -> Rehearsal:
    source = source_of(TARGET, "float32")
    return rehearse(plan, source, wholes(source.model()), alike=Alike(rank, 1))


PROVEN: dict[str, Callable[[], tuple[str, Plan]]] = {
    "replicated": lambda: ("mlp.py:tiny", plan_of("mlp.py:tiny", 8, dp_replicate=8)),
    "zero 1, recompute": lambda: ("llama.py:tiny", plan_of("llama.py:tiny", 8, dp_shard=8, zero=1, recompute="full")),
    "zero 3, 64 ranks, uneven": lambda: (TARGET, plan_of(TARGET, 64, dp_shard=64, zero=3, batch=64)),
    "hybrid, bf16": lambda: ("vit.py:tiny", plan_of("vit.py:tiny", 8, dp_replicate=2, dp_shard=4, zero=3, compute="bfloat16")),
    "tp over sequences, zero 3": lambda: (TARGET, plan_of(TARGET, 16, tp=2, dp_shard=8, zero=3)),
    "stages": lambda: (TARGET, plan_of(TARGET, 8, pp=4, dp_replicate=2, batch=32)),
    "stages, tp and zero 3": lambda: (TARGET, plan_of(TARGET, 16, pp=2, tp=2, dp_shard=4, zero=3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVEN)
def test_plans_of_the_planner_are_proven(name: str) -> None:
    """All checks hold."""
    target, plan = PROVEN[name]()
    verification = verified(plan, target)
    assert (CHECKS, ()) == (tuple(check.name for check in verification.checks), failed(verification)), verification


def test_ranks_that_are_alike_are_checked_once() -> None:
    """tp divides evenly, so one rank stands for all; the report says so."""
    (step, *_) = verified(plan_of(TARGET, 16, tp=2, dp_shard=8, zero=3)).checks
    assert "1 checked of 16 ranks, the others are alike: rank 0 for 16" == step.detail


def without_placement(plan: Plan) -> Plan:
    whole = (Replicate(), Replicate(), Replicate())
    return replace(plan, parameters=tuple((glob, whole if glob == "norm.weight" else placed) for glob, placed in plan.parameters))


def with_fewer_collectives(plan: Plan) -> Plan:
    prediction = plan.prediction
    return replace(plan, prediction=replace(prediction, collectives=tuple(each[1:] for each in prediction.collectives)))


def with_half_the_memory(plan: Plan) -> Plan:
    """Predicted for a device so small that the difference counts."""
    kinds = tuple(replace(each, activations=each.activations // 8, reserve=0) for each in plan.prediction.memory_bytes)
    small = replace(plan.cluster, memory_bytes=2**23)
    return replace(plan, cluster=small, prediction=replace(plan.prediction, memory_bytes=kinds))


def on_a_smaller_device(plan: Plan) -> Plan:
    return replace(plan, cluster=replace(plan.cluster, memory_bytes=2**20))


def with_another_split(plan: Plan) -> Plan:
    """A matrix split by its other dim, with borders as before: tensors no longer fit each other."""
    return replace(
        plan,
        parameters=tuple(
            (glob, (*placed[:2], Shard(1)) if glob.endswith("attention.wq.weight") else placed) for glob, placed in plan.parameters
        ),
    )


@pytest.mark.parametrize(
    ("falsify", "check", "found"),
    [
        (without_placement, "parameters", "rank 0: norm.weight: the plan says 32 float32, the rank has 4 float32"),
        (with_fewer_collectives, "collectives", "predicted 0"),
        (with_half_the_memory, "memory", "rank 0: measured"),
        (on_a_smaller_device, "memory", "rank 0: measured"),
        (with_another_split, "step", "rank 0 of 16: "),
    ],
)
def test_what_a_false_plan_gets_wrong_is_named(falsify: Callable[[Plan], Plan], check: str, found: str) -> None:
    """The one check that fails, and its numbers."""
    verification = verified(falsify(plan_of(TARGET, 16, tp=2, dp_shard=8, zero=3)))
    assert (check,) == failed(verification)
    assert found in next(each.detail for each in verification.checks if not each.ok)


def test_many_microbatches_follow_from_few() -> None:
    """The collectives and the peak of a step of 9, 10 and 11 microbatches lie on a line, which two short steps give."""
    plan = plan_of(TARGET, 4, dp_shard=4, zero=3, batch=32)
    size = plan.schedule.microbatch_size

    def of(microbatches: int) -> Rehearsal:
        schedule = replace(plan.schedule, microbatches=microbatches, global_batch=microbatches * size * plan.mesh.dp)
        return rehearsed(replace(plan, schedule=schedule), 0)

    ten, eleven, twelve = of(10), of(11), of(12)  # 10 are run one by one, 11 and 12 follow from 2 and 3
    counts = [sum(each.count for each in rehearsal.collectives) for rehearsal in (ten, eleven, twelve)]
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0
    peaks = [rehearsal.peak.nbytes for rehearsal in (ten, eleven, twelve)]
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rehearsal_is_what_really_runs(tmp_path: Path) -> None:
    """On every gloo rank: the same list of collectives, and the same peak of memory, byte for byte and kind for kind."""
    plans = (
        plan_of(TARGET, 4, tp=2, dp_shard=2, zero=3),
        plan_of(TARGET, 4, pp=2, dp_shard=2, zero=1),
        plan_of(TARGET, 4, dp_shard=4, zero=3, recompute="full", compute="bfloat16"),
    )
    real = run(plans, TARGET, ranks=4, directory=tmp_path)
    found = [[(each.collectives, each.peak) for each in (rehearsed(plan, rank) for plan in plans)] for rank in range(4)]
    assert real == found


def test_another_model_is_refused() -> None:
    """A plan's fingerprint must be the model's."""
    with pytest.raises(MismatchError, match=r"the plan is for gpt\.py:tiny with 53,440 parameters .*, this model has 41,248"):
        verified(plan_of(TARGET, 16, tp=2, dp_shard=8, zero=3), "llama.py:tiny")


def test_a_process_of_a_job_is_refused() -> None:
    """A rehearsal needs a process group of its own."""
    plan = plan_of(TARGET, 16, tp=2, dp_shard=8, zero=3)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        (step,) = verified(plan).checks
    finally:
        dist.destroy_process_group()
    assert "this process belongs to a process group; verify shapes in a process of its own, without torchrun" in step.detail


def test_nothing_is_left_behind() -> None:
    """No process group, no fake tensors: torch works as before."""
    verified(plan_of(TARGET, 16, tp=2, dp_shard=8, zero=3))
    storage = torch.ones(2).untyped_storage()
    assert (False, 3.0, 16) == (dist.is_initialized(), torch.tensor([1.0, 2.0]).sum().item(), storage.resize_(16).nbytes())
