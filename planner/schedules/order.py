"""What an action waits for, and an order in which a whole schedule can run.

A forward F(s, m) waits for the output of F(s-1, m). A backward B(s, m), or its input half I(s, m), waits for the output of F(s, m) and for the
gradient that B or I (s+1, m) hands back; a weight half W(s, m) waits for I(s, m). Each rank runs its own actions in the given order, so a
schedule can run exactly if these two relations together have no cycle.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.errors import PlanError
from planner.ir.schedule import Action, Schedule

Value = tuple[str, int, int]
"""What one action hands to another: ("output" or "gradient", stage that made it, microbatch)."""


def made_by(action: Action) -> Value | None:
    """The value that others may wait for; a weight half makes none."""
    if action.kind == "W":
        return None
    return ("output" if action.kind == "F" else "gradient", action.stage, action.microbatch)


def needed_by(action: Action, *, stages: int) -> tuple[Value, ...]:
    """The values that must exist before `action` starts."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return () if stage == 0 else (("output", stage - 1, microbatch),)
    if action.kind == "W":
        return (("gradient", stage, microbatch),)
    own = ("output", stage, microbatch)
    return (own,) if stage == stages - 1 else (own, ("gradient", stage + 1, microbatch))


def walk(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """All (rank, action) in an order that respects every dependency, in one pass over the queues.

    Raises PlanError that names the first rank which would wait for ever, and for what.
    """
    position = [0] * len(schedule.ranks)
    waiting: dict[Value, list[int]] = {}
    made: set[Value] = set()
    runnable = list(range(len(schedule.ranks)))
    while runnable:
        rank = runnable.pop()
        actions = schedule.ranks[rank]
        while position[rank] < len(actions):
            action = actions[position[rank]]
            missing = next((value for value in needed_by(action, stages=schedule.stages) if value not in made), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            yield rank, action
            position[rank] += 1
            value = made_by(action)
            if value is not None:
                made.add(value)
                runnable += waiting.pop(value, [])
    _check_finished(schedule, position=position, waiting=waiting)


def _check_finished(schedule: Schedule, *, position: list[int], waiting: dict[Value, list[int]]) -> None:
    for rank, actions in enumerate(schedule.ranks):
        if position[rank] < len(actions):
            kind, stage, microbatch = next(value for value, ranks in waiting.items() if rank in ranks)
            raise PlanError(
                f"schedule {schedule.name}: rank {rank} waits for ever before {actions[position[rank]]} (action {position[rank]}):"
                f" the {kind} of stage {stage} on microbatch {microbatch} never comes"
            )
