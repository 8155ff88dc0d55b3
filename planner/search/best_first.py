"""Best first over candidates: cheap bounds first, exact placement only where a bound still promises something.

    bound 1   every op divided perfectly over tp, no communication            one pass over the graph
    bound 2   the LP relaxation of the placement problem, without memory
    value     placement within the memory limit, stage cuts, simulated schedule

With T the bound on one microbatch through the whole model on one rank of each stage, no schedule of p stages and m microbatches takes less than
T (p + m - 1) / p: the first microbatch passes all stages, and the slowest stage, at least T/p, then works on m - 1 more. A heap orders
candidates by their best bound so far; when that reaches the best value, nothing left can win.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from planner.search.candidates import Candidate
from planner.search.evaluate import Evaluation
from planner.search.pool import Pool


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the candidates; they add up to the total unless the search was ended early."""

    candidates: int
    bounded_away: int
    out_of_memory: int
    solved: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`solved` by increasing step time, the best first; `bound_s` holds for every candidate that fits in memory."""

    solved: tuple[Evaluation, ...]
    counts: Counts
    bound_s: float
    ended_by: str


Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many candidates are settled, and how many there are."""


def search(candidates: Sequence[Candidate], pool: Pool, *, max_seconds: float, progress: Progress) -> Outcome:
    """The best plan over `candidates`, with its proven bound. `max_seconds` 0 means no limit; at least one plan is tried first."""
    started = monotonic()
    heap = [(pool.first_bound_s(c), 1, c) for c in candidates if pool.may_fit(c)]
    too_large = len(candidates) - len(heap)
    heapq.heapify(heap)
    solved: list[Evaluation] = []
    lowest: list[float] = []
    best_s, ended_by = None, "proven"
    while heap:
        bound, rung, candidate = heap[0]
        if best_s is not None and bound >= best_s:
            break
        if best_s is not None and max_seconds and monotonic() - started > max_seconds:
            ended_by = f"--max-seconds {max_seconds:g}"
            break
        progress("search", len(candidates) - len(heap), len(candidates))
        if rung == 1:
            heapq.heapreplace(heap, (max(bound, pool.second_bound_s(candidate)), 2, candidate))
            continue
        heapq.heappop(heap)
        found = pool.evaluate(candidate)
        if found is None:
            too_large += 1
            continue
        solved.append(found)
        lowest.append(bound)
        best_s = found.step_s if best_s is None else min(best_s, found.step_s)
    open_bounds = [bound for bound, _, _ in heap[:1]]
    solved.sort(key=lambda e: (e.step_s, e.candidate))
    bound_s = min([*lowest, *open_bounds], default=0.0)
    counts = Counts(len(candidates), len(heap), too_large, len(solved))
    return Outcome(tuple(solved), counts, bound_s, ended_by)
