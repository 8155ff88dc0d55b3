"""Plans that anyone in the field would expect, and the search against trying everything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from benchmarks.models import gpt
from costmodels.hardware import Cluster, Link, preset
from planner.driver import make_plan
from planner.errors import InfeasibleError
from planner.ir.family import GraphFamily
from planner.ir.options import Options
from planner.ir.plan import Plan
from planner.search.candidates import candidates
from planner.search.evaluate import Evaluation
from planner.search.legality import legality
from planner.search.pool import Pool
from planner.search.setting import setting_of
from planner.simulate.makespan import makespan_s
from planner.trace.source import ModelSource
from planner.trace.trace import trace
from tests.models.zoo import source


@cache
def traced(name: str, compute_dtype: str | None = "bfloat16") -> GraphFamily:
    return trace(source(name), compute_dtype=compute_dtype)


def placements(plan: Plan, ending: str) -> set[str]:
    """Placements along tp of the parameters whose names end so."""
    return {str(placed[-1]) for name, placed in plan.parameters if name.endswith(ending)}


def test_mlp_with_a_small_batch_is_column_then_row() -> None:
    """One sample per GPU: activations are small, gradients large, so weights are cut, the first by columns, the second by rows."""
    plan = make_plan(traced("mlp:wide"), preset("h100"), Options(global_batch=8))
    assert 8 == plan.mesh.tp
    assert {"S(0)"} == placements(plan, "up.weight")
    assert {"S(1)"} == placements(plan, "down.weight")


def test_small_model_with_a_large_batch_is_data_parallel() -> None:
    plan = make_plan(traced("gpt:gpt2_small"), preset("h100"), Options(global_batch=512))
    assert (8, 1, 1) == (plan.mesh.dp, plan.mesh.tp, plan.mesh.pp)


def test_model_of_twice_the_memory_is_sharded() -> None:
    """16 bytes of state per parameter are 120 GiB; a GPU has 80."""
    plan = make_plan(traced("llama:llama_8b"), preset("h100"), Options())
    whole = 18 * plan.model.parameters
    assert whole > 1.5 * plan.cluster.memory_bytes
    assert plan.mesh.dp_shard * plan.mesh.tp * plan.mesh.pp > 1
    assert max(plan.prediction.peak_memory_bytes) <= plan.cluster.memory_bytes


def two_nodes(inter_bytes_per_s: float) -> Cluster:
    machine = replace(preset("h100").with_devices(8, 4), backend="nccl")
    return replace(machine, inter=Link(latency_s=1e-6, bytes_per_s=inter_bytes_per_s))


def test_slow_links_between_nodes_keep_tensor_parallelism_inside() -> None:
    """With links between nodes as fast as inside, tp spans both nodes; 50 times slower, it does not."""
    options = Options(global_batch=2048)
    fast = make_plan(traced("mlp:wide"), two_nodes(preset("h100").intra.bytes_per_s), options)
    slow = make_plan(traced("mlp:wide"), two_nodes(preset("h100").intra.bytes_per_s / 50), options)
    assert 8 == fast.mesh.tp
    assert slow.mesh.tp <= 4


def test_decision_variables_do_not_depend_on_depth() -> None:
    """12 and 96 layers are the same placement problem."""
    counts = {layers: _variables(layers) for layers in (12, 96)}
    assert counts[12] == counts[96]


def _variables(layers: int) -> int:
    family = trace(replace(source("gpt:tiny"), model=lambda: gpt.tiny(layers=layers)))
    pool = Pool(family, setting_of(family, preset("h100"), Options(), makespan_s))
    return sum(len(decision.ways) for decision in pool.space(2, 2).decisions)


@pytest.mark.parametrize("name", ["mlp:tiny", "gpt:tiny", "vit:tiny"])
def test_search_finds_what_trying_everything_finds(name: str) -> None:
    """On a machine with room for all, the best plan is the best of all candidates, and the bound is below it."""
    family, cluster, options = traced(name, None), preset("cpu-gloo"), Options(global_batch=8)
    pool = Pool(family, setting_of(family, cluster, options, makespan_s))
    found, _ = candidates(cluster.devices, legality(family, pool, devices=cluster.devices, pinned=1), options)
    every = [pool.unlimited(candidate, incumbent_s=None) for candidate in found]
    best = min(evaluation.step_s for evaluation in every if isinstance(evaluation, Evaluation))
    plan = make_plan(family, cluster, options)
    assert pytest.approx(best, rel=1e-12) == plan.prediction.step_time_s
    assert plan.search.bound_s <= best


# model, heads, hidden, layers, tensor and pipeline degree, GPUs, batch, seconds per iteration (FLOPs of equation 3 over the printed rate):
# Narayanan et al., SC21, table 1
TABLE_1 = (
    ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 3.53),
    ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 3.7),
    ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 3.7),
    ("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 9.4),
    ("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 14.45),
    ("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 16.06),
    ("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 24.82),
    ("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 37.61),
    ("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 54.08),
    ("1008B", 160, 25600, 128, 8, 64, 3072, 3072, 102.6),
)


@cache
def megatron(heads: int, hidden: int, layers: int) -> GraphFamily:
    config = gpt.Config(layers=layers, width=hidden, heads=heads, vocab_size=51200, max_seq=2048)
    base = source("gpt:tiny")
    built: ModelSource = replace(base, model=lambda: gpt.GPT(config), inputs=lambda size: gpt.inputs(size, gpt.GPT(config)))
    return trace(built, compute_dtype="bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE_1, ids=[row[0] for row in TABLE_1])
def test_sc21_configurations(row: tuple[str, int, int, int, int, int, int, int, float]) -> None:
    """All rows, with full recompute and every data-parallel rank holding everything, fit into 80 GB, and the error bar of the predicted
    step holds the measured one. The microbatch size is the planner's own."""
    _, heads, hidden, layers, tp, pp, devices, batch, measured_s = row
    options = Options(mesh=(("pp", pp), ("tp", tp), ("dp_shard", 1)), recompute="full", global_batch=batch, zero=0)
    plan = make_plan(megatron(heads, hidden, layers), preset("a100-80g").with_devices(devices), options)
    assert max(plan.prediction.peak_memory_bytes) <= 80 * 2**30
    assert plan.prediction.step_time_low_s <= measured_s <= plan.prediction.step_time_high_s


@pytest.mark.slow
def test_sc21_18b_does_not_fit_on_one_gpu() -> None:
    """18.4B without model parallelism, everything replicated: the message names the memory it would need."""
    options = Options(mesh=(("pp", 1), ("tp", 1), ("dp_shard", 1)), recompute="full", global_batch=1024, zero=0)
    with pytest.raises(InfeasibleError, match=r"the smallest plan needs 3\d\d\.\d GiB per GPU .* the limit is 80\.0 GiB; try --gpus 512"):
        make_plan(megatron(48, 6144, 40), preset("a100-80g").with_devices(256), options)
