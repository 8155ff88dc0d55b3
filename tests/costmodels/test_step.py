"""Closed forms of a step; the pipeline ones are held against the simulator in tests/simulate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.step import bubble_of_ideal, bubble_of_total, exposed_s, optimizer_s, pipeline_s
from tests.costmodels.machines import DEVICE

seconds = st.floats(0, 1e6)


def test_equal_stages() -> None:
    """(m + p - 1)(f + b)."""
    assert (8 + 3) * 3.0 == pipeline_s([1.0] * 4, [2.0] * 4, 8)


def test_the_slowest_stage_rules() -> None:
    """Stage 1 of (1, 5, 1) waits 1 for its first input and its last gradient takes 2 to go back: 1 + 10 * 15 + 2."""
    assert 153.0 == pipeline_s([1.0, 5.0, 1.0], [2.0, 10.0, 2.0], 10)


def test_a_single_microbatch_visits_all_stages() -> None:
    assert 3 * 3 + 2 * 2 * 0.5 == pipeline_s([1.0] * 3, [2.0] * 3, 1, p2p_s=0.5)


@pytest.mark.parametrize(
    ("stages", "microbatches", "virtual", "ideal", "total"), [(4, 8, 1, 3 / 8, 3 / 11), (4, 8, 2, 3 / 16, 3 / 19), (1, 5, 1, 0, 0)]
)
def test_bubbles(stages: int, microbatches: int, virtual: int, ideal: float, total: float) -> None:
    assert (ideal, total) == (bubble_of_ideal(stages, microbatches, virtual), bubble_of_total(stages, microbatches, virtual))


@given(seconds, seconds, seconds, st.floats(0, 1))
def test_overlap_hides_at_most_the_communication(communication: float, compute: float, more: float, overlap: float) -> None:
    """What is exposed is between 0 and all of it, and more compute never exposes more."""
    exposed = exposed_s(communication, compute, overlap)
    assert 0 <= exposed_s(communication, compute + more, overlap) <= exposed <= communication


def test_optimizer_is_bound_by_memory() -> None:
    """4 + 8 bytes read and written, 4 read: 28 bytes at 8 bytes/s; nothing for no parameters."""
    assert 28 / 8 == optimizer_s(parameter_bytes=4, gradient_bytes=4, optimizer_bytes=8, device=DEVICE)
    assert 0.0 == optimizer_s(parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0, device=DEVICE)
