"""Jobs on gloo ranks compute what one process computes, and run the collectives that the rules say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.models import gpt, llama, mlp
from planner.ir.mesh import Mesh
from planner.ir.placement import Partial, Replicate, Shard
from planner.ir.plan import Activation, Plan, Stage
from planner.ir.strategy import Collective
from planner.runtime.record import compare
from tests.runtime import toys
from tests.runtime.parity import Cell, train_all
from tests.runtime.pipeline_ranks import launch
from tests.runtime.plans import make_plan

R, P = Replicate(), Partial()
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
STAGES = (Stage("", ("layers.0",)), Stage("layers.1", ("layers.1",)))
DP, FSDP, TP, PP = Mesh(dp_replicate=2), Mesh(dp_shard=2), Mesh(tp=2), Mesh(pp=2)
FULL_TP: dict[str, Any] = {"sequence": True, "vocabulary": True}


def cell(name: str, zoo: ModuleType, *, dtype: torch.dtype = torch.float64, **options: Any) -> Cell:
    return Cell(name, partial(zoo.tiny, 2), zoo.__name__, partial(plan_with, options), dtype)


def plan_with(options: dict[str, Any], model: nn.Module, zoo: Any) -> Plan:
    return make_plan(model, zoo, **options)


def head_scale_plan(model: nn.Module, zoo: Any) -> Plan:
    """Column, heads, row; the vector between them is whole on every rank."""
    plan = make_plan(model, zoo, mesh=TP)
    along_tp = {"up.weight": Shard(0), "up.bias": Shard(0), "down.weight": Shard(1)}
    return replace(
        plan,
        parameters=tuple((name, (R, R, along_tp.get(name, R))) for name, _ in plan.parameters),
        activations=(("down:output", Activation(P, R, R, R)), ("up:input", Activation(R, R, P, R))),
    )


TWO = (
    cell("gpt replicated", gpt, mesh=DP),
    cell("gpt zero 1", gpt, mesh=FSDP, zero=1),
    cell("gpt zero 2", gpt, mesh=FSDP, zero=2),
    cell("gpt zero 3", gpt, mesh=FSDP, zero=3),
    cell("gpt zero 3 recompute", gpt, mesh=FSDP, zero=3, recompute="full"),
    cell("gpt zero 3 one microbatch", gpt, mesh=FSDP, zero=3, microbatches=1),
    cell("gpt tp", gpt, mesh=TP),
    cell("gpt tp sp", gpt, mesh=TP, sequence=True),
    cell("gpt tp sp vocabulary", gpt, mesh=TP, **FULL_TP),
    cell("gpt tp sp vocabulary recompute", gpt, mesh=TP, recompute="full", **FULL_TP),
    cell("gpt tp fp32", gpt, mesh=TP, dtype=torch.float32, **FULL_TP),
    cell("llama tp sp vocabulary", llama, mesh=TP, **FULL_TP),
    cell("llama zero 3 fp32", llama, mesh=FSDP, zero=3, dtype=torch.float32),
    cell("mlp tp", mlp, mesh=TP),
    cell("mlp zero 1", mlp, mesh=FSDP, zero=1),
    cell("gpt pp", gpt, mesh=PP, stages=STAGES),
    Cell("odd vocabulary", toys.odd_gpt, gpt.__name__, partial(plan_with, {"mesh": TP, "sequence": True})),
    Cell("replicated inside tp", toys.HeadScale, toys.__name__, head_scale_plan),
)
FOUR = (
    cell("gpt hsdp zero 1", gpt, mesh=Mesh(dp_replicate=2, dp_shard=2), zero=1),
    cell("gpt tp x replicated", gpt, mesh=Mesh(dp_replicate=2, tp=2), **FULL_TP),
    cell("llama tp x zero 3", llama, mesh=Mesh(dp_shard=2, tp=2), zero=3, **FULL_TP),
    cell("gpt pp x tp", gpt, mesh=Mesh(pp=2, tp=2), stages=STAGES, **FULL_TP),
)
Results = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each rank found, by cell; all cells of one world size run in one launch."""
    ranks = launch(train_all, 2, tmp_path_factory.mktemp("two"), TWO)
    return lambda name: [rank[name] for rank in ranks]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Results:
    ranks = launch(train_all, 4, tmp_path_factory.mktemp("four"), FOUR)
    return lambda name: [rank[name] for rank in ranks]


def beyond(results: list[dict[str, Any]], tolerance: float) -> dict[str, float]:
    """The measures that differ from one process by more than `tolerance`."""
    worst = {measure: max(rank[measure] for rank in results) for measure in ("loss", "gradient", "norm", "weight")}
    return {measure: gap for measure, gap in worst.items() if not gap <= tolerance}


@pytest.mark.distributed
@pytest.mark.parametrize("tested", TWO, ids=lambda cell: cell.name)
def test_two_ranks_equal_one_process(tested: Cell, two: Results) -> None:
    """Loss, every gradient, the norm and the weights of three steps, with unequal weights per rank and microbatch."""
    assert {} == beyond(two(tested.name), TOLERANCE[tested.dtype])


@pytest.mark.distributed
@pytest.mark.parametrize("tested", FOUR, ids=lambda cell: cell.name)
def test_four_ranks_equal_one_process(tested: Cell, four: Results) -> None:
    """The same where two kinds of parallelism meet."""
    assert {} == beyond(four(tested.name), TOLERANCE[tested.dtype])


@pytest.mark.distributed
def test_a_tied_parameter_stays_one(two: Results) -> None:
    """Trap 1: embedding and head are one parameter, split by rows as one."""
    names = two("gpt tp sp vocabulary")[0]["parameters"]
    assert ["embedding.weight"] == [name for name in names if name in ("embedding.weight", "head.weight")]


def block_and_root() -> tuple[int, int]:
    """Bytes of a block and of everything else of the tiny GPT with two blocks, float64."""
    model = gpt.tiny(2)
    block = 8 * sum(p.numel() for p in model.layers[0].parameters())
    return block, 8 * sum(p.numel() for p in model.parameters()) - 2 * block


STEP = (Collective("all_reduce", "dp_shard", "step", 8, 2),)


def unit(kind: str, phase: str, *, blocks: int, roots: int, axis: str = "dp_shard", part: int = 1) -> tuple[Collective, ...]:
    """`blocks` collectives for each of the two blocks and `roots` for the rest, over 1/part of the bytes."""
    block, root = block_and_root()
    return Collective(kind, axis, phase, block // part, 2 * blocks), Collective(kind, axis, phase, root // part, roots)


@pytest.mark.distributed
def test_zero_levels_run_the_collectives_of_the_table(two: Results, four: Results) -> None:
    """Zero 1 gathers and scatters once; 2 scatters at each of two microbatches; 3 gathers blocks twice per microbatch; HSDP reduces once."""
    gathered, scattered = unit("all_gather", "forward", blocks=1, roots=1), unit("reduce_scatter", "backward", blocks=1, roots=1)
    twice = unit("reduce_scatter", "backward", blocks=2, roots=2)
    again = unit("all_gather", "backward", blocks=2, roots=0)[:1]
    reduced = unit("all_reduce", "backward", blocks=1, roots=1, axis="dp_replicate", part=2)
    expected = {
        "gpt zero 1": gathered + scattered + STEP,
        "gpt zero 2": gathered + twice + STEP,
        "gpt zero 3": unit("all_gather", "forward", blocks=2, roots=2) + again + twice + STEP,
        "gpt zero 3 recompute": unit("all_gather", "forward", blocks=2, roots=2) + again + twice + STEP,
    }
    assert {name: () for name in expected} == {name: compare(two(name)[0]["collectives"], want) for name, want in expected.items()}
    step = (*STEP, Collective("all_reduce", "dp_replicate", "step", 8, 2))
    assert () == compare(four("gpt hsdp zero 1")[0]["collectives"], gathered + scattered + reduced + step)


@pytest.mark.distributed
def test_borders_run_the_collectives_of_their_placements(two: Results) -> None:
    """Sequence parallelism: per microbatch and border one all_gather and one reduce_scatter each way, twice inside recomputed blocks."""
    whole = 4 * 16 * 32 * 8  # samples x tokens x width x bytes, of one microbatch
    outside, inside = 2, 2 * 2 * 2  # microbatches; x blocks x borders of a kind in a block
    loss = Collective("all_reduce", "tp", "forward", 4 * 16 * 8, 3 * 2)
    partial_grads = Collective("all_reduce", "tp", "step", 8 * (16 * 32 + 5 * 2 * 32), 1)  # positions and five norms

    def moved(phase: str, *, times: int) -> tuple[Collective, ...]:
        count = outside + times * inside
        return Collective("all_gather", "tp", phase, whole, count), Collective("reduce_scatter", "tp", phase, whole, count)

    once, twice = moved("backward", times=1), moved("backward", times=2)
    expected = {
        "gpt tp sp vocabulary": (*moved("forward", times=1), *once, loss, partial_grads),
        "gpt tp sp vocabulary recompute": (*moved("forward", times=1), *twice, loss, partial_grads),
    }
    assert {name: () for name in expected} == {name: compare(two(name)[0]["collectives"], want) for name, want in expected.items()}


@pytest.mark.distributed
def test_a_replicated_parameter_inside_tp_is_summed_once(two: Results) -> None:
    """Trap 5: one reduction of its gradient per step, of its size."""
    found = [each for each in two("replicated inside tp")[0]["collectives"] if each.phase == "step"]
    assert [Collective("all_reduce", "tp", "step", 4 * 8, 1)] == found
