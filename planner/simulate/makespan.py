"""How long a pipeline takes, also with thousands of microbatches.

Once a pipeline is full, each further microbatch adds the same time (the system is max-plus linear, so its growth is eventually periodic). So
beyond a few rounds the schedule is simulated at two lengths and continued in a straight line; the tests hold it to the full simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedules.build import build
from planner.simulate.engine import simulate

_ROUNDS = 4
"""Rounds of as many microbatches as stages, after which the growth is taken to be periodic."""

_PERIOD = 60
"""Microbatches over which the growth is measured: a multiple of the periods 1 to 6, and long beside any other that was seen."""


def makespan_s(
    schedule: str, *, microbatches: int, forward_s: Sequence[float], backward_s: Sequence[float], p2p_s: Sequence[float] | float = 0.0
) -> float:
    """Seconds from the first start to the last end of the schedule of that name; seconds as in `planner.simulate.engine.simulate`."""
    stages = len(forward_s)

    def simulated(count: int) -> float:
        program = build(schedule, stages=stages, microbatches=count)
        return simulate(program, forward_s=forward_s, backward_s=backward_s, p2p_s=p2p_s).makespan_s

    full = _ROUNDS * stages
    if microbatches <= full + 2 * _PERIOD:
        return simulated(microbatches)
    early, late = simulated(full), simulated(full + _PERIOD)
    return late + (late - early) / _PERIOD * (microbatches - full - _PERIOD)
