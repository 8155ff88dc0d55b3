"""Traps 2, 3 and 4: dims that the ranks do not divide, and reshapes that hide them."""

from __future__ import annotations

import pytest

from planner.errors import InfeasibleError
from planner.ir.names import matches
from planner.ir.placement import Shard
from tests.traps.cells import WORLDS, cells, family, plan


def why(ranks: int, name: str) -> list[str]:
    return [illegal.why for illegal in cells(ranks)[name].plan.illegal if illegal.what.startswith(f"tp={ranks}")]


@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, world in WORLDS.items() for name in world])
def test_shards_are_even(ranks: int, name: str) -> None:
    """Every dim that a plan cuts along tp is a multiple of the degree."""
    cell = cells(ranks)[name]
    shapes = {parameter.fqn: parameter.shape for parameter in family(WORLDS[ranks][name].target).low.parameters}
    cut = [(glob, placed[-1]) for glob, placed in cell.plan.parameters if placed[-1].is_shard]
    uneven = [
        (fqn, str(placement))
        for glob, placement in cut
        for fqn, shape in shapes.items()
        if matches(glob, fqn) and shape[placement.dim] % cell.plan.mesh.tp
    ]
    assert [] == uneven


@pytest.mark.parametrize(("ranks", "name"), [(4, "2 kv heads tp"), (4, "2 pooled tp"), (2, "2 pooled tp")])
def test_keys_and_values_reach_their_reshape_whole(ranks: int, name: str) -> None:
    """A split of the last dim would be cut inside a head, or lose half the sequence without an error."""
    activations = dict(cells(ranks)[name].plan.activations)
    inside = [activations[border].value for border in ("wk:output", "wv:output") if border in activations]
    assert Shard(2) not in inside
    columns = [fqn for fqn in ("wk", "wv") if Shard(0) == dict(cells(ranks)[name].plan.parameters)[f"{fqn}.weight"][-1]]
    assert [f"{fqn}:output" for fqn in columns] == [border for border in ("wk:output", "wv:output") if border in activations and columns]


def test_heads_that_the_ranks_do_not_divide_are_explained() -> None:
    assert ["2 KV heads (wk, wv) are not divisible by tp 4, so it stays whole or is cut elsewhere"] == why(4, "2 kv heads tp")
    assert ["6 heads (wq, wk, wv) are not divisible by tp 4, so it stays whole or is cut elsewhere"] == why(4, "3 heads tp")


def test_a_model_with_nothing_to_cut_is_refused() -> None:
    """Five by five, one sample, three tokens: no dim that four ranks share."""
    with pytest.raises(InfeasibleError) as caught:
        plan("uneven.py:only_fives", 4, tp=4, global_batch=1)
    assert "tp=4: weight dim 5 (column, row) is not divisible by tp 4" in str(caught.value)


def test_an_odd_vocabulary_stays_whole() -> None:
    """257 rows on 4 ranks: no split of the classes, with the reason."""
    placed = dict(cells(4)["4 vocabulary odd tp"].plan.parameters)
    assert Shard(0) not in (placed["embedding.weight"][-1], placed["head.weight"][-1])
    assert "vocabulary 257 (embedding) is not divisible by tp 4, so it stays whole or is cut elsewhere" in why(4, "4 vocabulary odd tp")


@pytest.mark.parametrize("name", ["4 vocabulary even tp", "4 vocabulary even tp dp"])
def test_an_even_vocabulary_is_cut_and_its_logits_are_never_gathered(name: str) -> None:
    cell = cells(4)[name]
    samples = cell.plan.schedule.microbatch_size
    assert Shard(0) == dict(cell.plan.parameters)["head.weight"][-1]
    largest = max(c.nbytes for c in cell.plan.prediction.collectives[0] if c.axis == "tp")
    assert largest < samples * 6 * 256 * 8
