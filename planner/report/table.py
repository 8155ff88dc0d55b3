"""The one look of all tables: no frame, a rule under the head, names folded and never cut, so that a pipe of 80 columns loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

Row = Sequence[str]

NAME_COLUMNS = 36
"""So much of a line the first column may take before it is folded."""
LEAST = 12
"""No column is folded to less than this."""


@dataclass(frozen=True, slots=True)
class Section:
    """A title, a head, rows, and a note below. A column whose name begins with `>` holds numbers: right-aligned, never folded.
    Without rows the title says it all."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold")
        if self.rows:
            yield self._table(options.max_width)
        if self.note:
            yield Text(self.note, style="dim")

    def _table(self, width: int) -> Table:
        heads = [text(column.removeprefix(">")) for column in self.columns]
        cells = [[text(cell) for cell in row] for row in self.rows]
        natural = [max(head.cell_len, *(row[index].cell_len for row in cells), 1) for index, head in enumerate(heads)]
        folding = [not column.startswith(">") for column in self.columns]
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        for head, folds, size in zip(heads, folding, widths(natural, folding=folding, available=width), strict=True):
            made.add_column(head, justify="left" if folds else "right", overflow="fold", width=size)
        for row in cells:
            made.add_row(*row)
        return made


def table(title: str, columns: Iterable[str], rows: Iterable[Row], *, note: str = "") -> Section:
    """A `Section` of any iterables."""
    return Section(title, tuple(columns), tuple(rows), note)


def facts(title: str, rows: Iterable[Row]) -> Group:
    """A title; names on the left, what there is to say on the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(text(name), text(value))
    return Group(Text(title, style="bold"), made)


def text(content: str) -> Text:
    """The content as it is: brackets are not markup, and characters that would steer a terminal are shown by their code."""
    return Text("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in content))


def widths(natural: Sequence[int], *, folding: Sequence[bool], available: int) -> list[int]:
    """Column widths: what a column would like where there is room, else equal shares for those that fold.

    Columns that need less than their share leave the rest to the others; the first one may take NAME_COLUMNS. Two blanks part columns.
    """
    left = available - 2 * (len(natural) - 1) - sum(size for size, folds in zip(natural, folding, strict=True) if not folds)
    found = list(natural)
    waiting = [index for index, folds in enumerate(folding) if folds]
    for index in sorted(waiting, key=lambda index: natural[index] if index else 0):
        share = left // len(waiting)
        found[index] = max(min(natural[index], share if index else max(share, NAME_COLUMNS)), min(natural[index], LEAST))
        left -= found[index]
        waiting.remove(index)
    return found
