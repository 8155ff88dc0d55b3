"""How long a pipeline takes, also with thousands of microbatches.

Once a pipeline is full, each further microbatch adds the same time (the system is max-plus linear, so its growth is eventually periodic). So
beyond a few rounds the schedule is simulated at two lengths and continued in a straight line; the tests hold it to the full simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.schedules.build import build
from planner.simulate.engine import simulate

_ROUNDS = 4
"""Rounds of as many microbatches as stages, after which the growth is taken to be periodic."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Seconds per microbatch of each stage, and per message of each boundary between stages."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    p2p_s: tuple[float, ...]


def makespan_s(schedule: str, pipeline: Pipeline, *, microbatches: int) -> float:
    """Seconds from the first start to the last end of `schedule`."""
    stages = len(pipeline.forward_s)
    full = _ROUNDS * stages
    if microbatches <= full + 2 * stages:
        return _simulated(schedule, pipeline, microbatches)
    early, late = (_simulated(schedule, pipeline, count) for count in (full, full + stages))
    return late + (late - early) / stages * (microbatches - full - stages)


def _simulated(schedule: str, pipeline: Pipeline, microbatches: int) -> float:
    program = build(schedule, stages=len(pipeline.forward_s), microbatches=microbatches)
    free: Sequence[float] | float = pipeline.p2p_s or 0.0
    return simulate(program, forward_s=pipeline.forward_s, backward_s=pipeline.backward_s, p2p_s=free).makespan_s
