"""A verification in words: what each check proves, whether it holds, and what was found."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.ir.verification import Check, Verification
from planner.report.table import text


def verification_report(verification: Verification) -> list[RenderableType]:
    """The title, every check, and the verdict."""
    failed = [check.name for check in verification.checks if not check.ok]
    verdict = "all proven" if verification.ok else f"not proven: {', '.join(failed) or 'nothing was checked'}"
    title = Text.assemble(("Verification", "bold"), f", level {verification.level}: ", text(verification.plan))
    return [title, *map(_paragraph, verification.checks), Text(verdict, style="bold green" if verification.ok else "bold red")]


def _paragraph(check: Check) -> RenderableType:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    mark = Text("ok", style="green") if check.ok else Text("FAILED", style="bold red")
    found = [text(line) for line in check.detail.splitlines()]
    grid.add_row(mark, Group(Text.assemble((check.name, "bold"), ": ", text(check.proves)), *found))
    return grid
