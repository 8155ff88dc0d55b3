"""The continued makespan against the whole simulation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.schedules.build import build
from planner.simulate.engine import simulate
from planner.simulate.makespan import makespan_s

SECONDS = st.integers(1, 9).map(float)


@given(st.data(), st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 300))
def test_a_long_pipeline_is_continued_in_a_straight_line(data: st.DataObject, schedule: str, stages: int, microbatches: int) -> None:
    """Unequal stages, messages that take time, any number of microbatches: within 1e-3 of the simulation, and exact while short."""
    forward, backward = (data.draw(st.lists(SECONDS, min_size=stages, max_size=stages)) for _ in range(2))
    sent = data.draw(st.lists(st.integers(0, 3).map(float), min_size=stages - 1, max_size=stages - 1))
    program = build(schedule, stages=stages, microbatches=microbatches)
    whole = simulate(program, forward_s=forward, backward_s=backward, p2p_s=sent).makespan_s
    found = makespan_s(schedule, microbatches=microbatches, forward_s=forward, backward_s=backward, p2p_s=sent)
    assert found == pytest.approx(whole, rel=1e-12 if microbatches <= 120 else 1e-3)
