"""Prints reports on stdout: coloured and as wide as the window on a terminal, plain and 80 columns wide in a pipe."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType

from planner.ir.json_text import render
from planner.ir.plan import Plan
from planner.ir.plan_json import write
from planner.ir.verification import Verification, document
from planner.report.difference import difference
from planner.report.tables import tables
from planner.report.verification import verification_report


def print_plan(plan: Plan) -> None:
    """The explanation of a plan."""
    _print(tables(plan))


def print_json(plan: Plan) -> None:
    """The text of the plan file."""
    print(write(plan), end="")


def print_difference(old: Plan, new: Plan) -> None:
    """What `new` does differently from `old`."""
    _print([difference(old, new)])


def print_verification(verification: Verification) -> None:
    """What was proven and what was not."""
    _print(verification_report(verification))


def print_verification_json(verification: Verification) -> None:
    """The same as JSON."""
    print(render(document(verification)), end="")


def _print(found: Iterable[RenderableType]) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        for number, each in enumerate(found):
            console.print(*([""] if number else []), each, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
