"""The command line: one file per command; each imports what it runs only when it runs.

Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 a known error (one line) or something not proven, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys

import click

from costmodels.errors import HardwareError
from planner.cli.diff import diff
from planner.cli.explain import explain
from planner.cli.plan import plan
from planner.cli.verify import verify
from planner.errors import AutoparError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="autopar")
def autopar() -> None:
    """Plans the parallel training of PyTorch models."""


for command in (plan, explain, diff, verify):
    autopar.add_command(command)


def main() -> None:
    """The console script: runs a command and turns known errors into one line and an exit code."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `autopar explain plan.json | head` ends like any other program in a pipe
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs a command and returns the exit code: what the command returns, 0 where it returns nothing."""
    try:
        result = autopar.main(arguments, prog_name="autopar", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted; nothing was written", err=True)
        return 130
    except (AutoparError, HardwareError) as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        return 1
    return result if isinstance(result, int) else 0
