"""Interleaved 1F1B: rank r holds the stages r, p + r, 2p + r ... (chunks) and runs groups of p microbatches through them.

Virtual microbatch k is chunk (k mod pv) // p in forward and v - 1 minus that in backward, on microbatch (k div pv) p + k mod p. Warm-up is
min(2 (p - r - 1) + (v - 1) p, m v) forwards, then forward and backward in turn. Source: Narayanan et al., SC21 (arXiv:2104.04473), with the
general warm-up also where m = p. Exact; rank r holds up to 2 (p - r - 1) + (v - 1) p + 1 chunks.
"""

from __future__ import annotations

from planner.ir.schedule import Action


def interleaved(rank: int, ranks: int, microbatches: int, virtual: int) -> tuple[Action, ...]:
    """The actions of one rank; `microbatches` is a multiple of `ranks`."""
    total = microbatches * virtual
    warmup = min(2 * (ranks - rank - 1) + (virtual - 1) * ranks, total)

    def action(kind: str, k: int) -> Action:
        chunk = k % (ranks * virtual) // ranks
        place = chunk if kind == "F" else virtual - 1 - chunk
        return Action(place * ranks + rank, kind, k // (ranks * virtual) * ranks + k % ranks)

    actions = [action("F", k) for k in range(warmup)]
    for k in range(warmup, total):
        actions += (action("F", k), action("B", k - warmup))
    actions += (action("B", k) for k in range(total - warmup, total))
    return tuple(actions)
