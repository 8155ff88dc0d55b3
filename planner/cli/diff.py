"""`autopar diff`: what two plan files do differently."""

from __future__ import annotations

import click


@click.command(short_help="Show what two plans do differently.")
@click.argument("old_file", metavar="OLD")
@click.argument("new_file", metavar="NEW")
def diff(old_file: str, new_file: str) -> None:
    """Shows what NEW does differently from OLD, in the order of the plan file; provenance is left out."""
    from planner.ir.plan_json import load
    from planner.report.console import print_difference

    print_difference(load(old_file), load(new_file))
