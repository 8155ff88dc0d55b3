"""Trap 1: an embedding and a head that share one parameter."""

from __future__ import annotations

import pytest
import torch

from planner.ir.placement import Shard
from tests.traps.cells import WORLDS, cells
from tests.traps.conftest import Ran

TIE = ("embedding.weight", "head.weight")
TIED = [(ranks, name) for ranks, world in WORLDS.items() for name in world if name.startswith("1 ")]


@pytest.mark.parametrize(("ranks", "name"), TIED)
def test_a_tie_has_one_placement(ranks: int, name: str) -> None:
    """The plan names the tie, and both names have the same placement on every axis."""
    plan = cells(ranks)[name].plan
    placed = dict(plan.parameters)
    assert ((TIE,), placed[TIE[0]]) == (plan.ties, placed[TIE[1]])


def test_a_tie_is_split_by_rows_of_the_table() -> None:
    """The bare model is planned as vocabulary parallel: the placement that two separate parameters would have had, too."""
    assert Shard(0) == dict(cells(2)["1 tied bare tp"].plan.parameters)[TIE[0]][-1]


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, name in TIED if " pp" not in name])
def test_a_tie_is_one_parameter_of_each_rank(ranks: int, name: str, ran: Ran) -> None:
    """After distribution, FSDP and a start on the meta device: one object, which the optimizer sees once."""
    for found in ran(ranks):
        assert TIE in found[name].names
        assert 1 == len(found[name].values.keys() & set(TIE))


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, name in TIED if " pp" in name])
def test_copies_on_two_stages_stay_equal(ranks: int, name: str, ran: Ran) -> None:
    """Bit for bit after three AdamW steps; either stage has one copy."""
    found = [result[name].values for result in ran(ranks)]
    copies = [[value for fqn, value in values.items() if fqn in TIE] for values in found]
    assert [1] * ranks == [len(values) for values in copies]
    assert all(torch.equal(copies[0][0], copy) for (copy,) in copies)
