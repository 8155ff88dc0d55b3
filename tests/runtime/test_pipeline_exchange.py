"""The messages of a pipeline match whatever the schedule, and cuts know what they send."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from planner.ir.schedule import Action, Schedule
from planner.runtime.exchange import Compute, Receive, Send, steps
from planner.schedules.build import build

schedules = st.one_of(
    st.builds(
        lambda name, stages, microbatches: build(name, stages=stages, microbatches=microbatches),
        st.sampled_from(["gpipe", "1f1b"]),
        st.integers(1, 6),
        st.integers(1, 9),
    ),
    st.builds(
        lambda ranks, groups, virtual: build("interleaved", stages=ranks * virtual, microbatches=ranks * groups, virtual=virtual),
        st.integers(2, 4),
        st.integers(1, 3),
        st.integers(2, 3),
    ),
)


def between(schedule: Schedule, rank: int, peer: int) -> list[tuple[bool, Action]]:
    """The messages that `rank` exchanges with `peer`, in its order; whether it is the lower rank that sends them."""
    found = []
    for step in steps(schedule)[rank]:
        owner = None if isinstance(step, Compute) else (step.to if isinstance(step, Send) else step.action.stage) % len(schedule.ranks)
        if owner == peer:
            found.append((isinstance(step, Send) == (rank < peer), step.action))
    return found


@given(schedules)
def test_two_ranks_list_their_messages_in_one_order(schedule: Schedule) -> None:
    """Without tags this is what makes a receive meet its send."""
    for rank, peer in combinations(range(len(schedule.ranks)), 2):
        assert between(schedule, rank, peer) == between(schedule, peer, rank)


@given(schedules)
def test_each_rank_computes_its_own_list(schedule: Schedule) -> None:
    """What is executed is the schedule that was simulated."""
    computed = tuple(tuple(step.action for step in own if isinstance(step, Compute)) for own in steps(schedule))
    assert schedule.ranks == computed


@given(schedules)
def test_a_message_is_posted_between_its_making_and_its_use(schedule: Schedule) -> None:
    """A send follows its action at once; a receive comes before the action that needs it."""
    for own in steps(schedule):
        for index, step in enumerate(own):
            if isinstance(step, Send):
                assert Compute(step.action) == own[index - 1]
            elif isinstance(step, Receive):
                assert Compute(Action(step.to, step.action.kind, step.action.microbatch)) in own[index:]
