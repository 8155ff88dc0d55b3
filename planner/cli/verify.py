"""`autopar verify`: what a plan promises, proven without the machine it is for."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import click

from planner.ir.verification import LEVELS


@click.command(short_help="Prove that a plan runs and does what it says.")
@click.argument("plan_file", metavar="PLAN")
@click.argument("target", metavar="MODEL")
@click.option("--level", type=click.Choice(LEVELS), default=LEVELS[0], show_default=True, help="How deep to look.")
@click.option("--json", "as_json", is_flag=True, help="Prints the checks as JSON.")
def verify(plan_file: str, target: str, level: str, as_json: bool) -> int:
    """Proves that PLAN runs MODEL (model.py, model.py:factory or a Hugging Face config.json) as it says.

    shapes: one process, no memory, full size: every rank's parameters, the list of collectives, the peak memory.

    This runs the code in model.py. Exit code 1 if something differs or is not proven.
    """
    from planner.cli.progress import shown_progress
    from planner.ir.plan_json import load
    from planner.report.console import print_verification, print_verification_json
    from planner.trace.load import load as load_model
    from planner.verify.shapes import verify_shapes

    plan = load(plan_file)
    with shown_progress() as progress, redirect_stdout(sys.stderr):  # what the user's code prints is no result
        verification = verify_shapes(plan, load_model(target), progress=progress)
    (print_verification_json if as_json else print_verification)(verification)
    return 0 if verification.ok else 1
