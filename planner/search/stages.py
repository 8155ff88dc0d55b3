"""Where to cut the model into pipeline stages: an exact dynamic program over units.

A unit is what runs between two places where a cut is possible (one call of a repeated or top-level block). With c(s, j, i) the time that
stage s spends on units j..i-1 per microbatch, the largest of which sets the pace of the pipeline,

    best(s, i) = min over j < i of max(best(s-1, j), c(s-1, j, i))      if units j..i-1 fit in the memory of stage s-1

O(stages x units^2), vectorised over j. A stage holds min(stages - s, microbatches) microbatches under 1f1b and all of them under gpipe, so
the memory of the same units differs by stage. Ties are broken towards the smaller sum of boundary traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of the model that is never cut. `begin` is the FQN whose call starts it (empty: it cannot begin a stage).

    `seconds` per microbatch, forward and backward; `resident_bytes` are held once, `in_flight_bytes` per microbatch in flight;
    `sent_s` is the time to hand over what crosses a cut before this unit.
    """

    begin: str
    seconds: float
    resident_bytes: float
    in_flight_bytes: float
    sent_s: float = 0.0


def cut(units: Sequence[Unit], *, in_flight: Sequence[int], fixed_bytes: float, limit_bytes: float) -> tuple[int, ...] | None:
    """The first unit of each stage, for `len(in_flight)` stages; None if no cut fits.

    `in_flight[s]` is the number of microbatches stage s holds at its peak, `fixed_bytes` what every stage needs besides.
    """
    count, stages = len(units), len(in_flight)
    seconds, resident, flying = (
        np.concatenate(([0.0], np.cumsum([getattr(unit, field) for unit in units])))
        for field in ("seconds", "resident_bytes", "in_flight_bytes")
    )
    crossing = np.array([unit.sent_s for unit in units] + [0.0])
    may_begin = np.array([bool(unit.begin) for unit in units] + [False])
    may_begin[0] = True
    best = np.full(count + 1, np.nan)
    best[0] = 0.0
    traffic = np.zeros(count + 1)
    chosen: list[NDArray[np.int64]] = []
    for stage in range(stages):
        pace, total, came = np.full(count + 1, np.nan), np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
        for end in range(stage + 1, count + 1):
            starts = np.arange(end)
            stage_s = seconds[end] - seconds[:end] + crossing[:end] * (stage > 0)
            held = fixed_bytes + resident[end] - resident[:end] + in_flight[stage] * (flying[end] - flying[:end])
            fits = (held <= limit_bytes) & ~np.isnan(best[:end]) & may_begin[:end] & ((starts > 0) == (stage > 0))
            if not fits.any():
                continue
            worst = np.maximum(best[:end], stage_s)
            sent = traffic[:end] + crossing[:end]
            order = np.lexsort((sent[fits], np.round(worst[fits], 12)))
            start = int(starts[fits][order[0]])
            pace[end], total[end], came[end] = worst[start], sent[start], start
        best, traffic = pace, total
        chosen.append(came)
    if np.isnan(best[count]):
        return None
    begins, end = [], count
    for came in reversed(chosen):
        end = int(came[end])
        begins.append(end)
    return tuple(reversed(begins))
