"""What the plan file must not replace: the files it is made from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from planner.errors import PlanError


def check_kept(output: str, *, inputs: Iterable[str | None]) -> None:
    """PlanError if `output` is one of the `inputs`, files that the user named."""
    if not Path(output).exists():
        return
    for name in inputs:
        if name and Path(name).exists() and Path(output).samefile(name):
            raise PlanError(f"-o {output} would replace {name}, which is read for the plan; choose another name")
