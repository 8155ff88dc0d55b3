"""The runners-up, and the part of the step in which each loses."""

from __future__ import annotations

from dataclasses import fields

from planner.ir.plan import Breakdown
from planner.search.best_first import Outcome
from planner.search.evaluate import Evaluation

_KEPT = 5


def alternatives(outcome: Outcome) -> tuple[tuple[Evaluation, str], ...]:
    """The best solved plan of each other policy, fastest first, with the reason it lost. How data parallelism is split into replicas and
    shards makes no other policy."""
    best = outcome.solved[0]
    seen = {_policy(best)}
    kept = []
    for other in outcome.solved[1:]:
        if _policy(other) not in seen:
            seen.add(_policy(other))
            kept.append((other, _why(other, best)))
    return tuple(kept[:_KEPT])


def _policy(evaluation: Evaluation) -> tuple[object, ...]:
    candidate = evaluation.candidate
    return candidate.mesh.pp, candidate.mesh.tp, candidate.zero, candidate.recompute


def _why(other: Evaluation, best: Evaluation) -> str:
    slower = other.step_s / best.step_s - 1
    if slower < 5e-4:
        more = other.peak_bytes / best.peak_bytes - 1
        return "as fast, " + (f"{more:.1%} more memory" if more > 0 else "later in the order")
    parts = [(getattr(other.breakdown, field.name) - getattr(best.breakdown, field.name), field.name) for field in fields(Breakdown)]
    worst, name = max(parts)
    return f"{slower:.1%} slower: {name.replace('_', ' ')} takes {worst / best.step_s:.1%} of the best step more"
