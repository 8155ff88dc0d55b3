"""Runs a schedule with given durations.

An action starts when its rank is free and everything it waits for has arrived: max(rank free, made + p2p). Each rank runs its actions in
order, so the start times are longest paths and one pass in dependency order finds them exactly. A p2p delays the receiver and occupies
nobody; stages on one rank hand over for free. Leaves out: contention of messages, and variation of durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import ClusterError
from planner.ir.schedule import Action, Schedule
from planner.schedules.order import Value, made_by, needed_by, walk


@dataclass(frozen=True, slots=True)
class Event:
    """One action of one rank, as simulated."""

    rank: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """A schedule with the times of its actions. `starts_s[r]`, `ends_s[r]` follow `schedule.ranks[r]`; `busy_s[r]` is the sum of durations;
    `peak_in_flight[r]` counts activations of one stage and microbatch that rank r holds, from forward to the end of backward."""

    schedule: Schedule
    starts_s: tuple[tuple[float, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]
    busy_s: tuple[float, ...]
    peak_in_flight: tuple[int, ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max((ends[-1] for ends in self.ends_s if ends), default=0.0)

    @property
    def bubble_of_total(self) -> float:
        """Idle time of all ranks over their whole time."""
        whole = self.makespan_s * len(self.busy_s)
        return 1.0 - sum(self.busy_s) / whole if whole else 0.0

    @property
    def events(self) -> tuple[Event, ...]:
        """All actions, rank by rank, each rank in the order of time."""
        rows = zip(self.schedule.ranks, self.starts_s, self.ends_s, strict=True)
        return tuple(
            Event(rank, action, start, end)
            for rank, (actions, starts, ends) in enumerate(rows)
            for action, start, end in zip(actions, starts, ends, strict=True)
        )


def simulate(
    schedule: Schedule,
    *,
    forward_s: float | Sequence[float],
    backward_s: float | Sequence[float],
    p2p_s: float | Sequence[float] = 0.0,
) -> Simulation:
    """Times of every action. `forward_s` and `backward_s` are seconds per microbatch of a stage, one number or one per stage; the halves I and
    W take half of `backward_s` each. `p2p_s` is one number or one per boundary between stages s and s + 1.

    Raises ClusterError if a sequence has the wrong length, PlanError if the schedule deadlocks.
    """
    stages = schedule.stages
    forward = _per_stage("forward_s", forward_s, count=stages)
    backward = _per_stage("backward_s", backward_s, count=stages)
    half = tuple(seconds / 2 for seconds in backward)
    duration = {"F": forward, "B": backward, "I": half, "W": half}
    arrival_s = _boundaries(schedule, _per_stage("p2p_s", p2p_s, count=max(stages - 1, 0)))
    starts: list[list[float]] = [[] for _ in schedule.ranks]
    ends: list[list[float]] = [[] for _ in schedule.ranks]
    made_s: dict[Value, float] = {}
    for rank, action in walk(schedule):
        start = ends[rank][-1] if ends[rank] else 0.0
        for value in needed_by(action, stages=stages):
            start = max(start, made_s[value] + arrival_s.get((value[1], action.stage), 0.0))
        end = start + duration[action.kind][action.stage]
        starts[rank].append(start)
        ends[rank].append(end)
        made = made_by(action)
        if made is not None:
            made_s[made] = end
    return Simulation(
        schedule,
        tuple(map(tuple, starts)),
        tuple(map(tuple, ends)),
        tuple(sum(duration[action.kind][action.stage] for action in actions) for actions in schedule.ranks),
        tuple(map(peak_in_flight, schedule.ranks)),
    )


def peak_in_flight(actions: Sequence[Action]) -> int:
    """The most activations held at once by a rank that runs `actions` in this order."""
    held = peak = 0
    for action in actions:
        held += {"F": 1, "I": 0, "B": -1, "W": -1}[action.kind]
        peak = max(peak, held)
    return peak


def _per_stage(name: str, seconds: float | Sequence[float], *, count: int) -> tuple[float, ...]:
    if not isinstance(seconds, Sequence):
        return (float(seconds),) * count
    if len(seconds) != count:
        raise ClusterError(f"{name} has {len(seconds)} entries; give one number or {count}")
    return tuple(map(float, seconds))


def _boundaries(schedule: Schedule, p2p_s: tuple[float, ...]) -> dict[tuple[int, int], float]:
    """Seconds from stage to stage, both ways, for neighbours on different ranks."""
    home = {action.stage: rank for rank, actions in enumerate(schedule.ranks) for action in actions}
    costs: dict[tuple[int, int], float] = {}
    for stage, seconds in enumerate(p2p_s):
        if home.get(stage) != home.get(stage + 1):
            costs[stage, stage + 1] = costs[stage + 1, stage] = seconds
    return costs
