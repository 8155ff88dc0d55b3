"""Schedules by name: their order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.errors import AutoparError
from planner.schedules.build import build, names
from planner.schedules.verify import grid


def test_names() -> None:
    assert ("1f1b", "gpipe", "interleaved") == names()


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "virtual"),
    [("gpipe", 3, 4, 1), ("1f1b", 4, 6, 1), ("1f1b", 4, 2, 1), ("interleaved", 4, 4, 2), ("interleaved", 8, 8, 2)],
)
def test_orders(golden: Callable[[str, str], None], name: str, stages: int, microbatches: int, virtual: int) -> None:
    """The order of actions, as printed and reviewed once."""
    schedule = build(name, stages=stages, microbatches=microbatches, virtual=virtual)
    golden(f"schedules/{name}-{stages}-{microbatches}-{virtual}.txt", grid(schedule) + "\n")


def test_1f1b_of_two_ranks_by_hand() -> None:
    assert "0: 0F0 0F1 0B0 0F2 0B1 0B2\n1: 1F0 1B0 1F1 1B1 1F2 1B2" == grid(build("1f1b", stages=2, microbatches=3))


def test_interleaved_of_two_ranks_by_hand() -> None:
    """Rank 0 has stages 0 and 2; two microbatches through stage 0, then through stage 2; 4 warm-up forwards on rank 0, 2 on rank 1."""
    assert "0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1" == grid(
        build("interleaved", stages=4, microbatches=2, virtual=2)
    )


def test_interleaved_with_one_stage_per_rank_is_1f1b() -> None:
    assert build("1f1b", stages=4, microbatches=8).ranks == build("interleaved", stages=4, microbatches=8).ranks


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("dualpipe", (4, 8, 1), "schedule 'dualpipe' is unknown; known are 1f1b, gpipe, interleaved"),
        ("gpipe", (0, 8, 1), "schedule gpipe: stages=0, microbatches=8 and virtual=1 must be at least 1"),
        ("1f1b", (4, 8, 2), "schedule 1f1b has one stage per rank; for virtual=2 use interleaved"),
        ("interleaved", (5, 8, 2), "schedule interleaved: 5 stages do not divide into 2 per rank; use a multiple of 2"),
        ("interleaved", (8, 6, 2), "schedule interleaved: 6 microbatches are not a multiple of the 4 ranks; use 8, or 1f1b"),
    ],
)
def test_what_is_refused(name: str, numbers: tuple[int, int, int], message: str) -> None:
    stages, microbatches, virtual = numbers
    with pytest.raises(AutoparError) as error:
        build(name, stages=stages, microbatches=microbatches, virtual=virtual)
    assert message == str(error.value)
