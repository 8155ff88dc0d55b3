"""Counts of data-parallel collectives against walking the schedule, and padding against FSDP2's rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.mesh import Mesh
from planner.schedules.build import build
from planner.search.candidates import Candidate
from planner.search.data_parallel import padded_numel, rest_gathers


def walked(schedule: str, stages: int, stage: int, microbatches: int) -> tuple[int, int]:
    """Gathers forward and backward of parameters that stay from a forward until the next backward has used them."""
    counts, here = {"F": 0, "B": 0}, False
    for action in build(schedule, stages=stages, microbatches=microbatches).ranks[stage]:
        counts[action.kind] += not here
        here = action.kind == "F"
    return counts["F"], counts["B"]


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 20), st.data())
def test_gathers_of_what_is_in_no_block(schedule: str, stages: int, microbatches: int, data: st.DataObject) -> None:
    """The closed form counts what a walk over the schedule counts."""
    stage = data.draw(st.integers(0, stages - 1))
    candidate = Candidate(Mesh(pp=stages, dp_shard=2), 1, microbatches, 3, "none", schedule if stages > 1 else "1f1b")
    assert walked(candidate.schedule, stages, stage, microbatches) == rest_gathers(stage, candidate)


@pytest.mark.parametrize(("shape", "shards", "expected"), [((8, 3), 4, 24), ((5, 3), 4, 24), ((1,), 4, 4), ((), 2, 2)])
def test_shards_are_padded_to_the_largest(shape: tuple[int, ...], shards: int, expected: int) -> None:
    assert expected == padded_numel(shape, shards)
