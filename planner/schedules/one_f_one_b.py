"""1F1B: a few forwards to warm up, then one forward and one backward in turn.

Source: Narayanan et al., SC21 (arXiv:2104.04473). Exact; rank r of p holds at most p - r microbatches.
"""

from __future__ import annotations

from planner.ir.schedule import Action


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> tuple[Action, ...]:
    """The actions of one rank: min(p - r - 1, m) warm-up forwards, pairs (F, B), the remaining backwards."""
    warmup = min(ranks - rank - 1, microbatches)
    actions = [Action(rank, "F", m) for m in range(warmup)]
    for m in range(warmup, microbatches):
        actions += (Action(rank, "F", m), Action(rank, "B", m - warmup))
    actions += (Action(rank, "B", m) for m in range(microbatches - warmup, microbatches))
    return tuple(actions)
