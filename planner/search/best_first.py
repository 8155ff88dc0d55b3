"""Best first over candidates: cheap bounds first, exact placement only where a bound still promises something.

    bound 1   every op divided perfectly over tp, no communication            one pass over the graph
    bound 2   the LP relaxation of the placement problem, without memory and what happens once a step
    value     the fastest placement, stage cuts, simulated schedule, if that fits in memory
    bound 3   the LP with the memory of all stages together as a limit, if it does not
    value     placement under that limit, stage cuts, simulated schedule

With T the bound on one microbatch through the whole model on one rank of each stage, no schedule of p stages and m microbatches takes less than
T (p + m - 1) / p: the first microbatch passes all stages, and the slowest stage, at least T/p, then works on m - 1 more. A heap orders
candidates by their best bound so far; when that reaches the best value, nothing left can win.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from planner.search.candidates import Candidate
from planner.search.evaluate import Evaluation, Rejected
from planner.search.pool import Pool


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the candidates. `idle` are those whose tensor-parallel ranks would all do the same; they count as bounded away."""

    candidates: int
    bounded_away: int
    out_of_memory: int
    solved: int
    idle: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`solved` by increasing step time, the best first; `bound_s` holds for every candidate that fits in memory."""

    solved: tuple[Evaluation, ...]
    counts: Counts
    bound_s: float
    ended_by: str


_SHOWN = 6
"""Plans of which the report has room for: the best and five others."""

_TRIES = 2
"""Candidates evaluated for a pair of degrees that only the report asks for."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many candidates are settled, and how many there are."""


def search(candidates: Sequence[Candidate], pool: Pool, *, max_seconds: float, progress: Progress) -> Outcome:
    """The best plan over `candidates`, with its proven bound. `max_seconds` 0 means no limit; at least one plan is tried first."""
    started = monotonic()
    heap = [(pool.first_bound_s(c), 1, c) for c in candidates if pool.may_fit(c)]
    too_large, slower, idle = len(candidates) - len(heap), 0, 0
    heapq.heapify(heap)
    solved: list[Evaluation] = []
    lowest: list[float] = []
    best_s: float | None = None
    ended_by = "proven"
    while heap and (best_s is None or heap[0][0] < best_s):
        if best_s is not None and max_seconds and monotonic() - started > max_seconds:
            ended_by = f"--max-seconds {max_seconds:g}"
            break
        progress("search", len(candidates) - len(heap), len(candidates))
        bound_s, rung, candidate = heapq.heappop(heap)
        step = _climb(pool, candidate, rung, best_s)
        if isinstance(step, float):
            heapq.heappush(heap, (max(bound_s, step), rung + 1, candidate))
        elif isinstance(step, Evaluation):
            solved.append(step)
            lowest.append(max(bound_s, pool.placement_bound_s(candidate)))
            best_s = step.step_s if best_s is None else min(best_s, step.step_s)
        elif step is Rejected.MEMORY:
            too_large += 1
        else:
            slower += 1
            idle += step is Rejected.IDLE
            lowest.append(max(bound_s, pool.placement_bound_s(candidate)))
    shown = _runners_up(pool, solved, heap)
    solved.extend(shown)
    solved.sort(key=lambda e: (e.step_s, e.candidate))
    bound_s = min([*lowest, *(bound for bound, _, _ in heap[:1])], default=0.0)
    return Outcome(tuple(solved), Counts(len(candidates), len(heap) - len(shown) + slower, too_large, len(solved), idle), bound_s, ended_by)


def _runners_up(pool: Pool, solved: Sequence[Evaluation], heap: Sequence[tuple[float, int, Candidate]]) -> list[Evaluation]:
    """Plans that bounds had ruled out, evaluated all the same, for other degrees than the solved ones: they show what the best one is better
    than. Two are tried for each pair of degrees, because the most promising one may not fit."""
    tries = Counter(_degrees(evaluation.candidate) for evaluation in solved for _ in range(_TRIES))
    found: list[Evaluation] = []
    for _, _, candidate in sorted(heap) if solved else ():
        if len(solved) + len(found) >= _SHOWN or sum(tries.values()) - _TRIES * len(solved) >= _TRIES * _SHOWN:
            break
        if tries[_degrees(candidate)] < _TRIES:
            tries[_degrees(candidate)] += 1
            evaluation = pool.unlimited(candidate, incumbent_s=None)
            if isinstance(evaluation, Evaluation):
                tries[_degrees(candidate)] = _TRIES
                found.append(evaluation)
    return found


def _degrees(candidate: Candidate) -> tuple[int, int]:
    return candidate.mesh.pp, candidate.mesh.tp


def _climb(pool: Pool, candidate: Candidate, rung: int, best_s: float | None) -> float | Evaluation | Rejected:
    """One rung up for one candidate: a better bound, its value, or why it has none."""
    if rung == 1:
        return pool.second_bound_s(candidate)
    if rung == 2:
        found = pool.unlimited(candidate, incumbent_s=best_s)
        if found is not Rejected.MEMORY:
            return found
        bound_s = pool.third_bound_s(candidate)
        return Rejected.MEMORY if bound_s is None else bound_s
    return pool.limited(candidate, incumbent_s=best_s)
