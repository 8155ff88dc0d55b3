"""Traps 5, 9, 10, 11 and 12: what the plan says of small structures; that they run is in test_parity.py."""

from __future__ import annotations

import pytest

from planner.ir.placement import Replicate
from planner.ir.plan import Plan
from tests.traps.cells import cells, plan


@pytest.mark.parametrize("name", ["9 nested", "9 nested scaled"])
def test_nested_outputs_are_planned_in_two_stages(name: str) -> None:
    """Keyword-only inputs are named by their keys, one that is absent is no input."""
    made = cells(2)[name].plan
    inputs = {("x",), ("scale",), ("target",)} if name.endswith("scaled") else {("x",), ("target",)}
    assert (2, inputs) == (len(made.stages), {info.path for info in made.model.inputs})


@pytest.mark.parametrize("name", ["5 head scale tp", "5 head scale tp dp"])
def test_a_whole_vector_in_a_split_region_is_summed_once(name: str) -> None:
    """Four numbers of eight bytes, one all_reduce over tp after the last microbatch or in the engine; heads are split on both sides."""
    made = cells(4)[name].plan
    placed = dict(made.parameters)
    assert (Replicate(), True, True) == (placed["scale"][-1], placed["up.weight"][-1].is_shard, placed["down.weight"][-1].is_shard)
    sums = [c for c in made.prediction.collectives[0] if (c.kind, c.axis) == ("all_reduce", "tp") and c.phase != "forward"]
    assert 1 == sum(c.count for c in sums if 32 <= c.nbytes <= 32 + 8 * 8)


def bytes_of(made: Plan) -> tuple[int, int, int]:
    kinds = made.prediction.memory_bytes[0]
    return kinds.parameters, kinds.gradients, kinds.optimizer


def test_frozen_parameters_cost_neither_gradient_nor_optimizer() -> None:
    """float64: 8 bytes per parameter, 8 per trained one for its gradient, 16 for AdamW; the frozen linears are 4 x (16 x 16 + 16)."""
    frozen, adapters = 4 * (16 * 16 + 16), 4 * 2 * 4 * 16
    assert (8 * (frozen + adapters), 8 * adapters, 16 * adapters) == bytes_of(plan("lora.py:model", 1))
    every = frozen + adapters
    assert (8 * every, 8 * every, 16 * every) == bytes_of(plan("lora.py:whole", 1))


def test_batch_statistics_see_the_whole_batch() -> None:
    """An in-place activation behind a split product, and a batch norm: tensor parallelism keeps the batch in one piece."""
    made = cells(2)["12 in place tp"].plan
    assert (1, True) == (made.schedule.microbatches, dict(made.parameters)["up.weight"][-1].is_shard)
