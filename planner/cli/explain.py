"""`autopar explain`: a plan file in words and tables. It needs neither torch nor a solver."""

from __future__ import annotations

import click


@click.command(short_help="Show a plan, its predicted costs and why it was chosen.")
@click.argument("plan_file", metavar="PLAN")
@click.option("--json", "as_json", is_flag=True, help="Prints the plan as JSON.")
def explain(plan_file: str, as_json: bool) -> None:
    """Shows what PLAN does, what it is predicted to cost and why it was chosen. Reading a plan never runs code."""
    from planner.ir.plan_json import load
    from planner.report.console import print_json, print_plan

    plan = load(plan_file)
    if as_json:
        print_json(plan)
    else:
        print_plan(plan)
