"""Names in a plan. `layers.*` stands for every numbered sibling, `layers.*[1-3]` for those numbered 1 to 3: where not all siblings are
copies of one block, the plan says which are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

Value = TypeVar("Value")

_GLOB = re.compile(r"\*(?:\[(\d+)-(\d+)\])?")


def block_glob(stem: str, numbers: tuple[int, ...], *, alone: bool) -> str:
    """The name of the blocks `stem` + number; `alone` says that no sibling outside `numbers` exists."""
    return f"{stem}*" if alone else f"{stem}*[{numbers[0]}-{numbers[-1]}]"


def matches(glob: str, fqn: str) -> bool:
    """Whether `fqn` is one of the names that `glob` stands for."""
    spans = [(match.span(), match.groups()) for match in _GLOB.finditer(glob)]
    pattern, end = "", 0
    for (start, stop), _ in spans:
        pattern += re.escape(glob[end:start]) + r"(\d+)"
        end = stop
    found = re.fullmatch(pattern + re.escape(glob[end:]), fqn)
    if found is None:
        return False
    return all(low is None or int(low) <= int(number) <= int(high) for number, (_, (low, high)) in zip(found.groups(), spans, strict=True))


def lookup(table: Iterable[tuple[str, Value]], fqn: str) -> Value | None:
    """The value of the first entry whose name is `fqn`, else of the first whose glob stands for it; None if there is no such entry."""
    rows = tuple(table)
    exact = (value for name, value in rows if name == fqn)
    globbed = (value for name, value in rows if "*" in name and matches(name, fqn))
    return next(exact, None) or next(globbed, None)
