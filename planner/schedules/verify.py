"""Whether a schedule is one: complete, each stage on one rank, nothing twice, and free of deadlock."""

from __future__ import annotations

from collections import Counter

from planner.errors import PlanError
from planner.ir.schedule import KINDS, Action, Schedule
from planner.schedules.order import walk


def verify(schedule: Schedule) -> Schedule:
    """Returns `schedule`; raises PlanError that names the offending rank and action."""
    _check_actions(schedule)
    _check_places(schedule)
    _check_complete(schedule)
    for _ in walk(schedule):
        pass
    return schedule


def grid(schedule: Schedule) -> str:
    """One line per rank, its actions in order: `0: 0F0 0F1 0B0 0B1`."""
    return "\n".join(f"{rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(schedule.ranks))


def _check_actions(schedule: Schedule) -> None:
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.ranks):
        for index, action in enumerate(actions):
            if action.kind not in KINDS or not 0 <= action.stage < schedule.stages or not 0 <= action.microbatch < schedule.microbatches:
                known = f"{schedule.stages} stages and {schedule.microbatches} microbatches"
                raise _error(schedule, rank, index, f"does not belong to a schedule of {known}")
            if action in seen:
                raise _error(schedule, rank, index, "is there a second time")
            seen.add(action)


def _check_places(schedule: Schedule) -> None:
    home: dict[int, int] = {}
    for rank, actions in enumerate(schedule.ranks):
        for index, action in enumerate(actions):
            if home.setdefault(action.stage, rank) != rank:
                raise _error(schedule, rank, index, f"runs a stage that rank {home[action.stage]} holds")


def _check_complete(schedule: Schedule) -> None:
    kinds: dict[tuple[int, int], str] = {}
    home = {action.stage: rank for rank, actions in enumerate(schedule.ranks) for action in actions}
    for actions in schedule.ranks:
        for action in actions:
            key = action.stage, action.microbatch
            kinds[key] = "".join(sorted(kinds.get(key, "") + action.kind))
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            found = kinds.get((stage, microbatch), "")
            if found not in ("BF", "FIW"):
                where = f"rank {home[stage]}" if stage in home else "no rank"
                raise PlanError(
                    f"schedule {schedule.name}: {where} runs {_listed(found)} of stage {stage} on microbatch {microbatch};"
                    " needed are F and B, or F, I and W"
                )


def _listed(kinds: str) -> str:
    return ", ".join(Counter(kinds)) or "nothing"


def _error(schedule: Schedule, rank: int, index: int, what: str) -> PlanError:
    return PlanError(f"schedule {schedule.name}: rank {rank}, action {index}: {schedule.ranks[rank][index]} {what}")
