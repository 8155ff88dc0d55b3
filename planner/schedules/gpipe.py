"""GPipe: all forwards, then all backwards. Source: Huang et al., arXiv:1811.06965. Exact; every rank holds all microbatches at once."""

from __future__ import annotations

from planner.ir.schedule import Action


def gpipe(rank: int, microbatches: int) -> tuple[Action, ...]:
    """The actions of one rank, which is also its stage."""
    forwards = tuple(Action(rank, "F", m) for m in range(microbatches))
    return forwards + tuple(Action(rank, "B", m) for m in range(microbatches))
