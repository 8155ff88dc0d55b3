"""Prints reports on stdout: coloured and as wide as the window on a terminal, plain and 80 columns wide in a pipe."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType

from planner.ir.plan import Plan
from planner.ir.plan_json import write
from planner.report.difference import difference
from planner.report.tables import tables


def print_plan(plan: Plan) -> None:
    """The explanation of a plan."""
    _print(tables(plan))


def print_json(plan: Plan) -> None:
    """The text of the plan file."""
    print(write(plan), end="")


def print_difference(old: Plan, new: Plan) -> None:
    """What `new` does differently from `old`."""
    _print([difference(old, new)])


def _print(found: Iterable[RenderableType]) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        for number, each in enumerate(found):
            console.print(*([""] if number else []), each, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
