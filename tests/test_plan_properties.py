"""What holds for every plan, whatever the model, the cluster and the options: its figures agree with each other and move the right way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from costmodels.hardware import preset, preset_names
from planner.driver import make_plan
from planner.errors import InfeasibleError
from planner.ir import plan_json
from planner.ir.family import GraphFamily
from planner.ir.options import Options
from planner.ir.plan import Plan
from planner.trace.trace import trace, trace_with
from tests.models.zoo import TINY, source

SLACK = 1 + 1e-9
"""Sums of floats in different orders."""

DRAWN = 22
"""Problems drawn from the grid, with a fixed seed."""


@cache
def family(name: str) -> GraphFamily:
    return trace(source(name))


def drawn() -> Iterator[tuple[str, str, int, Options]]:
    """Model, machine, devices and options."""
    random = Random(20)
    for number in range(DRAWN):
        name = TINY[number % len(TINY)]
        devices = random.choice((1, 2, 4, 8, 16))
        options = Options(
            global_batch=devices * random.choice((1, 2, 6, 8)),
            mesh=random.choice(((), (), (("tp", 1),), (("pp", 1),))),
            memory_bytes=random.choice((None, None, 4 * 2**30, 12 * 2**30)),
            recompute=random.choice(("auto", "none", "full")),
            schedule=random.choice(("auto", "1f1b", "gpipe")),
        )
        yield name, random.choice(preset_names()), devices, options


def planned(name: str, machine: str, devices: int, options: Options) -> Plan:
    return make_plan(family(name), preset(machine).with_devices(devices), options)


@cache
def plan_of(name: str, machine: str, devices: int, options: Options) -> Plan | None:
    """The plan, None where none fits."""
    try:
        return planned(name, machine, devices, options)
    except InfeasibleError:
        return None


CASES = list(drawn())
IDS = [f"{name}-{devices}x{machine}-{number}" for number, (name, machine, devices, _) in enumerate(CASES)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_figures_of_a_plan_agree(case: tuple[str, str, int, Options]) -> None:
    """Parts add up to the step, the bound is below it, the gap is a fraction, the error bar surrounds it, memory stays below the limit."""
    plan = plan_of(*case)
    if plan is None:
        pytest.skip("nothing fits")
    prediction, search = plan.prediction, plan.search
    assert pytest.approx(prediction.step_time_s, rel=1e-6) == prediction.breakdown_s.total
    assert all(seconds >= 0 for seconds in vars_of(prediction.breakdown_s))
    assert 0 <= search.bound_s <= prediction.step_time_s * SLACK
    assert 0 <= search.gap <= 1
    assert prediction.step_time_low_s <= prediction.step_time_s <= prediction.step_time_high_s
    assert 0 <= prediction.bubble_of_total <= 1
    assert 0 <= prediction.mfu <= 1
    assert pytest.approx(plan.schedule.global_batch, rel=1e-6) == prediction.samples_per_s * prediction.step_time_s
    assert max(prediction.peak_memory_bytes) <= plan.constraints.memory_bytes
    assert prediction.peak_memory_bytes == tuple(kinds.total for kinds in prediction.memory_bytes)
    assert all(other.step_time_s >= prediction.step_time_s / SLACK for other in plan.alternatives)
    assert all(other.peak_memory_bytes <= plan.constraints.memory_bytes for other in plan.alternatives)
    assert plan_json.canonical(plan) == plan_json.read(plan_json.write(plan_json.canonical(plan)))


def vars_of(breakdown: object) -> Iterator[float]:
    for name in type(breakdown).__slots__:  # type: ignore[attr-defined]
        yield getattr(breakdown, name)


@pytest.mark.parametrize("case", CASES[::4], ids=IDS[::4])
def test_options_are_kept(case: tuple[str, str, int, Options]) -> None:
    """What was asked for is what was planned."""
    plan, options = plan_of(*case), case[3]
    if plan is None:
        pytest.skip("nothing fits")
    assert options.global_batch == plan.schedule.global_batch
    assert all(plan.mesh.degree(axis) == degree for axis, degree in options.mesh)
    assert plan.schedule.name == options.schedule or "auto" == options.schedule or 1 == plan.mesh.pp
    assert {policy for _, policy in plan.recompute} <= ({options.recompute} if options.recompute != "auto" else {"none", "full"})


@pytest.mark.parametrize("case", CASES[::4], ids=IDS[::4])
def test_same_problem_same_plan(case: tuple[str, str, int, Options]) -> None:
    """A second search ends with the same file but for `provenance`."""
    first = plan_of(*case)
    if first is None:
        pytest.skip("nothing fits")
    assert plan_json.write(replace(first, provenance=())) == plan_json.write(replace(planned(*case), provenance=()))


@pytest.mark.parametrize("name", TINY)
def test_zero_lowers_lasting_memory(name: str) -> None:
    """Parameters, gradients and optimizer states of ZeRO 3 take no more than those of ZeRO 1, and those no more than of ZeRO 0."""
    held = []
    for zero in (3, 1, 0):
        mesh = (("dp_shard", 2),) if zero else (("dp_replicate", 2),)
        plan = planned(name, "h100", 2, Options(global_batch=2, mesh=mesh, zero=zero, recompute="none"))
        held.append(max(kinds.parameters + kinds.gradients + kinds.optimizer for kinds in plan.prediction.memory_bytes))
    assert sorted(held) == held


@pytest.mark.parametrize("name", TINY)
def test_recompute_keeps_less_and_computes_more(name: str) -> None:
    """With one microbatch of one size: fewer bytes of activations, no less time."""
    kept, again = (
        planned(name, "h100", 2, Options(global_batch=2, mesh=(("dp_replicate", 2),), recompute=recompute)) for recompute in ("none", "full")
    )
    assert again.prediction.memory_bytes[0].activations <= kept.prediction.memory_bytes[0].activations
    assert again.prediction.step_time_s >= kept.prediction.step_time_s / SLACK


@pytest.mark.parametrize("name", TINY)
def test_less_memory_is_never_faster(name: str) -> None:
    """A tighter limit cannot make the best plan faster, and a looser one cannot make it slower."""
    free = planned(name, "h100", 4, Options(global_batch=32))
    tight = max(free.prediction.peak_memory_bytes) - 1
    try:
        limited = planned(name, "h100", 4, Options(global_batch=32, memory_bytes=tight))
    except InfeasibleError:
        return
    assert max(limited.prediction.peak_memory_bytes) <= tight
    assert limited.prediction.step_time_s >= free.prediction.step_time_s / SLACK


@pytest.mark.parametrize("name", TINY)
def test_a_pinned_plan_is_no_faster(name: str) -> None:
    """The best plan of all is at least as fast as the best with a degree pinned."""
    free = planned(name, "h100", 4, Options(global_batch=32))
    for mesh in ((("tp", 1),), (("dp_shard", 4),), (("dp_replicate", 4),)):
        pinned = planned(name, "h100", 4, Options(global_batch=32, mesh=mesh))
        assert pinned.prediction.step_time_s >= free.prediction.step_time_s / SLACK


@pytest.mark.parametrize("name", TINY)
def test_more_samples_take_no_less_time(name: str) -> None:
    """Twice the batch on the same devices: at least the same step."""
    steps = [planned(name, "h100", 2, Options(global_batch=batch)).prediction.step_time_s for batch in (4, 8, 16)]
    assert sorted(steps) == steps


@pytest.mark.parametrize("name", ["gpt:tiny", "llama:tiny"])
def test_folding_changes_no_cost(name: str) -> None:
    """Blocks recorded once or each by itself: the same plan at the same predicted step."""
    full = trace_with(source(name), runs_of=lambda model: ())
    cluster, options = preset("h100").with_devices(4), Options(global_batch=16)
    once, each = make_plan(family(name), cluster, options), make_plan(full, cluster, options)
    assert once.mesh == each.mesh
    assert pytest.approx(once.prediction.step_time_s, rel=1e-6) == each.prediction.step_time_s


PROGRAM = """
from dataclasses import replace
from costmodels.hardware import preset
from planner.driver import make_plan
from planner.ir import plan_json
from planner.ir.options import Options
from planner.trace.trace import trace
from tests.models.zoo import source
for name in ("gpt:tiny", "moe:tiny", "two_tower:tiny"):
    plan = make_plan(trace(source(name)), preset("h100").with_devices(8), Options(global_batch=16))
    print(plan_json.write(replace(plan, provenance=())))
"""


@pytest.mark.slow
def test_hash_seed_changes_nothing() -> None:
    """Processes that order their sets differently write the same files."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        ).stdout
        for seed in ("1", "2")
    }
    assert 1 == len(texts)
