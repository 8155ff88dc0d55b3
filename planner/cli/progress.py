"""Progress on stderr: the present phase and a spinner on a terminal, nothing in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def phases() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the name of the phase now running; the display is gone at the end, however it ends."""
    console = Console(stderr=True)
    with console.status("start") as status:
        yield lambda phase: status.update(phase)
