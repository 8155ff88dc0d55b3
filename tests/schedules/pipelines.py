"""Hypothesis strategies: schedules that `build` accepts."""

from __future__ import annotations

from hypothesis import strategies as st

from planner.ir.schedule import Schedule
from planner.schedules.build import build


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule by name, with up to 6 ranks, 3 stages on each and 12 microbatches (18 if interleaved)."""
    name = draw(st.sampled_from(("gpipe", "1f1b", "interleaved")))
    ranks = draw(st.integers(1, 6))
    if name == "interleaved":
        virtual = draw(st.integers(1, 3))
        return build(name, stages=ranks * virtual, microbatches=ranks * draw(st.integers(1, 3)), virtual=virtual)
    return build(name, stages=ranks, microbatches=draw(st.integers(1, 12)))
