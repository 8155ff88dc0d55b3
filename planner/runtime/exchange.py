"""The order in which each rank of a pipeline computes, sends and receives.

Actions are walked in the order of their earliest start, every action taking one unit of time. Where an action makes a value that another rank
needs, its rank sends it next and the other rank posts the receive at the same moment. So any two ranks list their common messages in the
same order, which is what makes point-to-point messages without tags match and never wait on each other in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.schedule import Action, Schedule
from planner.schedules.order import made_by, needed_by, walk


@dataclass(frozen=True, slots=True)
class Compute:
    """Runs an action."""

    action: Action


@dataclass(frozen=True, slots=True)
class Send:
    """Sends what `action` of this rank made to the rank of stage `to`."""

    action: Action
    to: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Posts the receive of what `action` of another rank makes for stage `to` of this rank."""

    action: Action
    to: int


Step = Compute | Send | Receive


def steps(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """What each rank does, in order. Raises PlanError if the schedule would wait for ever."""
    ranks = len(schedule.ranks)
    lists: list[list[Step]] = [[] for _ in range(ranks)]
    for rank, action in by_start(schedule):
        lists[rank].append(Compute(action))
        to = target(action, stages=schedule.stages)
        if to is not None and to % ranks != rank:
            lists[rank].append(Send(action, to))
            lists[to % ranks].append(Receive(action, to))
    return tuple(tuple(steps) for steps in lists)


def by_start(schedule: Schedule) -> list[tuple[int, Action]]:
    """All (rank, action), by the time at which each can start if every action takes one unit."""
    made_at: dict[object, int] = {}
    free_at = [0] * len(schedule.ranks)
    started: list[tuple[int, int, Action]] = []
    for rank, action in walk(schedule):
        start = max([free_at[rank], *(made_at[value] for value in needed_by(action, stages=schedule.stages))])
        free_at[rank] = start + 1
        value = made_by(action)
        if value is not None:
            made_at[value] = start + 1
        started.append((start, rank, action))
    return [(rank, action) for _, rank, action in sorted(started, key=lambda item: item[:2])]


def target(action: Action, *, stages: int) -> int | None:
    """The stage that needs what `action` makes, None if no other stage does."""
    if action.kind == "F":
        return action.stage + 1 if action.stage + 1 < stages else None
    if action.kind in ("B", "I"):
        return action.stage - 1 if action.stage > 0 else None
    return None
