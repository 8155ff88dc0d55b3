"""What is built verifies; what is broken is refused, with the rank and the action."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.ir.schedule import Action, Schedule, parse_action
from planner.schedules.order import needed_by, walk
from planner.schedules.verify import grid, verify
from tests.schedules.pipelines import schedules


@given(schedules())
def test_what_is_built_verifies(schedule: Schedule) -> None:
    """Complete, one rank per stage, and it runs to its end."""
    assert schedule is verify(schedule)


@given(schedules())
def test_walk_visits_every_action_after_what_it_needs(schedule: Schedule) -> None:
    """Each rank in its own order, and every input made before it is used."""
    visited: list[list[Action]] = [[] for _ in schedule.ranks]
    made = set()
    for rank, action in walk(schedule):
        assert set(needed_by(action, stages=schedule.stages)) <= made
        made.add(("output" if action.kind == "F" else "gradient", action.stage, action.microbatch))
        visited[rank].append(action)
    assert schedule.ranks == tuple(map(tuple, visited))


@given(schedules(), st.data())
def test_a_missing_action_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    rank, index = _pick(schedule, data)
    actions = schedule.ranks[rank]
    with pytest.raises(PlanError, match=f"of stage {actions[index].stage} on microbatch {actions[index].microbatch}; needed are F and B"):
        verify(_with(schedule, rank, actions[:index] + actions[index + 1 :]))


@given(schedules(), st.data())
def test_a_repeated_action_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    rank, index = _pick(schedule, data)
    actions = schedule.ranks[rank]
    with pytest.raises(PlanError, match=f"rank {rank}, action {len(actions)}: {actions[index]} is there a second time"):
        verify(_with(schedule, rank, (*actions, actions[index])))


@given(schedules(), st.data())
def test_an_action_on_another_rank_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    assume(len(schedule.ranks) > 1)
    rank, index = _pick(schedule, data)
    action = schedule.ranks[rank][index]
    moved = _with(schedule, rank, schedule.ranks[rank][:index] + schedule.ranks[rank][index + 1 :])
    other = (rank + 1) % len(schedule.ranks)
    with pytest.raises(PlanError, match=r"runs a stage that rank \d+ holds"):
        verify(_with(moved, other, (*moved.ranks[other], action)))


@given(schedules(), st.data())
def test_backward_before_forward_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    """A rank that begins with a backward waits for ever, or makes another rank do so."""
    rank = data.draw(st.integers(0, len(schedule.ranks) - 1))
    actions = schedule.ranks[rank]
    backward = data.draw(st.sampled_from([action for action in actions if action.kind == "B"]))
    rest = tuple(action for action in actions if action != backward)
    with pytest.raises(PlanError) as error:
        verify(_with(schedule, rank, (backward, *rest)))
    found = re.search(r"waits for ever before (\w+) \(action \d+\): the (\w+) of stage (\d+) on microbatch (\d+) never", str(error.value))
    assert found is not None
    assert (found[2], int(found[3]), int(found[4])) in needed_by(parse_action(found[1]), stages=schedule.stages)


@pytest.mark.parametrize("text", ["2F0", "0F4"])
def test_foreign_actions_are_refused(text: str) -> None:
    """A stage or microbatch that the schedule does not have."""
    schedule = _parse("0F0 0B0", "1F0 1B0")
    with pytest.raises(PlanError, match=f"rank 1, action 2: {text} does not belong to a schedule of 2 stages and 1 microbatches"):
        verify(_with(schedule, 1, (*schedule.ranks[1], parse_action(text))))


def test_deadlock_between_ranks() -> None:
    """Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1; rank 1 wants microbatch 1 before it goes backward."""
    schedule = _parse("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    with pytest.raises(PlanError) as error:
        verify(schedule)
    assert "schedule test: rank 0 waits for ever before 0B0 (action 1): the gradient of stage 1 on microbatch 0 never comes" == str(error.value)


def test_split_backward_verifies() -> None:
    """I and W together stand for B, and only I is waited for."""
    schedule = _parse("0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1")
    assert schedule is verify(schedule)


def test_weight_half_before_input_half_is_refused() -> None:
    with pytest.raises(PlanError, match="rank 0 waits for ever before 0W0"):
        verify(_parse("0F0 0W0 0I0"))


def test_half_a_backward_is_refused() -> None:
    with pytest.raises(PlanError, match="rank 0 runs F, I of stage 0 on microbatch 0; needed are F and B, or F, I and W"):
        verify(_parse("0F0 0I0"))


def test_a_stage_without_a_rank_is_refused() -> None:
    with pytest.raises(PlanError, match="no rank runs nothing of stage 1 on microbatch 0"):
        verify(replace(_parse("0F0 0B0"), stages=2))


def test_grid_prints_what_parses_back() -> None:
    text = "0: 0F0 0B0\n1: 1F0 1B0"
    assert text == grid(_parse("0F0 0B0", "1F0 1B0"))


def _parse(*ranks: str) -> Schedule:
    actions = tuple(tuple(map(parse_action, rank.split())) for rank in ranks)
    flat = [action for rank in actions for action in rank]
    return Schedule("test", max(a.stage for a in flat) + 1, max(a.microbatch for a in flat) + 1, 1, actions)


def _pick(schedule: Schedule, data: st.DataObject) -> tuple[int, int]:
    rank = data.draw(st.integers(0, len(schedule.ranks) - 1))
    return rank, data.draw(st.integers(0, len(schedule.ranks[rank]) - 1))


def _with(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> Schedule:
    return replace(schedule, ranks=(*schedule.ranks[:rank], actions, *schedule.ranks[rank + 1 :]))
