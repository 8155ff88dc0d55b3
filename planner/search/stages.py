"""Where to cut the model into pipeline stages: an exact dynamic program over units.

A unit is what runs between two places where a cut is possible (one call of a repeated or top-level block). With c(s, j, i) the time that
stage s spends on units j..i-1 per microbatch, the largest of which sets the pace of the pipeline,

    best(s, i) = min over j < i of max(best(s-1, j), c(s-1, j, i))      if units j..i-1 fit in the memory of stage s-1

O(stages x units^2), vectorised over j. A stage holds min(stages - s, microbatches) microbatches under 1f1b and all of them under gpipe, so
the memory of the same units differs by stage. Every stage must hold parameters, or its optimizer has nothing to do. Ties are broken towards
the smaller sum of boundary traffic.
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
    count = len(units)
    seconds, resident, flying = (
        _between([getattr(unit, field) for unit in units]) for field in ("seconds", "resident_bytes", "in_flight_bytes")
    )
    sent = np.array([unit.sent_s for unit in units])
    may_begin = np.array([bool(unit.begin) for unit in units])
    nonempty = (np.arange(count + 1)[:, None] > np.arange(count)[None, :]) & (resident > 0)
    best, traffic = np.full(count, np.nan), np.zeros(count)
    best[0] = 0.0
    chosen: list[NDArray[np.int64]] = []
    done = False
    for stage, flights in enumerate(in_flight):
        legal = nonempty & (fixed_bytes + resident + flights * flying <= limit_bytes) & ~np.isnan(best)
        legal &= may_begin & (np.arange(count) > 0) if stage else np.arange(count) == 0
        pace = np.where(legal, np.maximum(best, seconds + sent * (stage > 0)), np.inf)
        least = pace.min(axis=1)
        total = np.where(pace <= least[:, None] * (1 + 1e-12), traffic + sent, np.inf)
        came = total.argmin(axis=1)
        reached = np.isfinite(least)
        best = np.where(reached, least, np.nan)[:count]
        traffic = np.where(reached, total.min(axis=1), 0.0)[:count]
        chosen.append(came)
        done = bool(reached[count])
    if not done:
        return None
    begins, end = [], count
    for came in reversed(chosen):
        end = int(came[end])
        begins.append(end)
    return tuple(reversed(begins))


def _between(amounts: Sequence[float]) -> NDArray[np.float64]:
    """[end, start] -> the sum over units start..end-1."""
    sums = np.concatenate(([0.0], np.cumsum(amounts)))
    return sums[:, None] - sums[None, :-1]
