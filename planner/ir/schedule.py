"""A pipeline schedule as data: for each rank, the actions in the order it executes them.

Text form as in torch: `2F0` is the forward of stage 2 on microbatch 0, `2B0` its backward, `2I0`/`2W0` backward for input and for weight.
Stage of (rank r, chunk c) is c * ranks + r.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import PlanError

KINDS = ("F", "B", "I", "W")
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One step of one rank: `kind` (see KINDS) of `stage` on `microbatch`."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def parse_action(text: str) -> Action:
    """The inverse of `str(action)`."""
    match = _ACTION.fullmatch(text)
    if match is None:
        raise PlanError(f"action {text!r} is not of the form 2F0 (stage, one of {''.join(KINDS)}, microbatch)")
    return Action(int(match[1]), match[2], int(match[3]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """`ranks[r]` is what rank r executes. `exact` is false for schedules that change the gradients; they name how in `approximation`."""

    name: str
    stages: int
    microbatches: int
    virtual: int
    ranks: tuple[tuple[Action, ...], ...]
    exact: bool = True
    approximation: str = ""
