"""Names in a plan: a `*` stands for one component of an FQN (`layers.*.wq.weight` names `layers.3.wq.weight`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

Value = TypeVar("Value")


def matches(glob: str, fqn: str) -> bool:
    """Whether `fqn` is one of the names that `glob` stands for."""
    pattern = re.escape(glob).replace(r"\*", r"[^.]+")
    return re.fullmatch(pattern, fqn) is not None


def lookup(table: Iterable[tuple[str, Value]], fqn: str) -> Value | None:
    """The value of the first entry whose name is `fqn`, else of the first whose glob stands for it; None if there is no such entry."""
    rows = tuple(table)
    exact = (value for name, value in rows if name == fqn)
    globbed = (value for name, value in rows if "*" in name and matches(name, fqn))
    return next(exact, None) or next(globbed, None)
