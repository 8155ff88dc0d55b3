"""Operators that make a tensor out of numbers: every rank makes the whole of it."""

from __future__ import annotations

from planner.rules.call import Rules
from planner.rules.pointwise import nothing

RULES: Rules = dict.fromkeys(
    (
        "aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.empty.memory_format", "aten.eye.default",
        "aten.full.default", "aten.linspace.default", "aten.ones.default", "aten.scalar_tensor.default", "aten.zeros.default",
    ),
    nothing,
)  # fmt: skip
