"""Progress on stderr: the present phase and how far it is, on a terminal; nothing in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of (phase, done, total) that shows them; the display is gone at the end, however it ends."""
    with Console(stderr=True).status("start") as status:
        yield lambda phase, done, total: status.update(f"{phase} {done:,} of {total:,}" if total > 1 else phase)
