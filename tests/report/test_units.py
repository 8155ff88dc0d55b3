"""Numbers with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report import units


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("79.6 GiB", units.gib(79.6 * 2**30)),
        ("1,536.0 GiB", units.gib(1536 * 2**30)),
        ("60.0 MiB", units.gib(60 * 2**20)),
        ("2.0 KiB", units.gib(2048)),
        ("16 B", units.gib(16)),
        ("0", units.gib(0)),
        ("1,234 s", units.duration(1234)),
        ("12.3 s", units.duration(12.34)),
        ("312 ms", units.duration(0.3123)),
        ("1.00 ms", units.duration(0.001)),
        ("4.20 us", units.duration(4.2e-6)),
        ("0", units.duration(0)),
        ("41.3 %", units.percent(0.413)),
        ("< 0.1 %", units.percent(1e-5)),
        ("0.0 %", units.percent(0)),
        ("8.03 B", units.count(8.03e9)),
        ("124 M", units.count(124_439_808)),
        ("12,400", units.count(12400)),
        ("3.21 samples/s", units.rate(3.21, "samples")),
        ("209,715 tokens/s", units.rate(209715.2, "tokens")),
        ("24.1 TFLOP", units.work(24.1e12)),
        ("1.50 EFLOP", units.work(1.5e18)),
        ("5.52 MFLOP", units.work(5.52e6)),
        ("120,000 FLOP", units.work(1.2e5)),
        ("1 microbatch", units.amount(1, "microbatch")),
        ("2 microbatches", units.amount(2, "microbatch")),
        ("8 samples", units.amount(8, "sample")),
        ("MiB", units.memory_unit(2**29).name),
        ("0.5", units.memory_unit(2**40).text(2**29)),
    ],
)
def test_examples(text: str, shown: str) -> None:
    """One example for every unit and every rounding."""
    assert text == shown


@given(st.floats(1e-9, 1e6))
def test_durations_are_right_to_half_a_percent(seconds: float) -> None:
    """What is shown reads back as the same time, within its last digit."""
    number, unit = units.duration(seconds).replace(",", "").split()
    assert seconds == pytest.approx(float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit], rel=0.0051, abs=5.1e-9)
