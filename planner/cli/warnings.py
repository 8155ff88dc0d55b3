"""What a user should know about the recording of the model, one line each."""

from __future__ import annotations

from planner.ir.family import GraphFamily


def warnings(family: GraphFamily) -> tuple[str, ...]:
    """The recording's own warnings, and the reason for a fixed microbatch if it is fixed."""
    fixed = (f"the microbatch is fixed to {family.low.batch}: {family.fixed}",) if family.high is None else ()
    return (*family.low.warnings, *fixed)
