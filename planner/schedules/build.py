"""Schedules by name."""

from __future__ import annotations

from planner.errors import ClusterError
from planner.ir.schedule import Schedule
from planner.schedules.gpipe import gpipe
from planner.schedules.interleaved import interleaved
from planner.schedules.one_f_one_b import one_f_one_b

NAMES = ("1f1b", "gpipe", "interleaved")


def names() -> tuple[str, ...]:
    """The schedules that `build` knows."""
    return NAMES


def build(name: str, *, stages: int, microbatches: int, virtual: int = 1) -> Schedule:
    """The schedule `name` for `stages` stages in all, `virtual` of them on each rank.

    Raises ClusterError for an unknown name or numbers that do not fit: only "interleaved" takes virtual > 1, needs `stages` to be a multiple
    of `virtual` and `microbatches` to be a multiple of the number of ranks. With virtual=1 it is 1F1B.
    """
    _check(name, stages=stages, microbatches=microbatches, virtual=virtual)
    ranks = stages // virtual
    if name == "gpipe":
        actions = tuple(gpipe(rank, microbatches) for rank in range(ranks))
    elif name == "1f1b" or virtual == 1:
        actions = tuple(one_f_one_b(rank, ranks, microbatches) for rank in range(ranks))
    else:
        actions = tuple(interleaved(rank, ranks, microbatches, virtual) for rank in range(ranks))
    return Schedule(name, stages, microbatches, virtual, actions)


def _check(name: str, *, stages: int, microbatches: int, virtual: int) -> None:
    if name not in NAMES:
        raise ClusterError(f"schedule {name!r} is unknown; known are {', '.join(NAMES)}")
    if min(stages, microbatches, virtual) < 1:
        raise ClusterError(f"schedule {name}: stages={stages}, microbatches={microbatches} and virtual={virtual} must be at least 1")
    if virtual > 1 and name != "interleaved":
        raise ClusterError(f"schedule {name} has one stage per rank; for virtual={virtual} use interleaved")
    if stages % virtual:
        raise ClusterError(f"schedule {name}: {stages} stages do not divide into {virtual} per rank; use a multiple of {virtual}")
    ranks = stages // virtual
    if name == "interleaved" and microbatches % ranks:
        above = (microbatches // ranks + 1) * ranks
        raise ClusterError(f"schedule interleaved: {microbatches} microbatches are not a multiple of the {ranks} ranks; use {above}, or 1f1b")
