"""Lists of names made short: numbered siblings that are alike become one `*` row, consecutive numbers a range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.:])")


def alike(named: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """(name, value) pairs in their order, where `a.0.w` and `a.1.w` with one value become `a.*.w (2)`."""
    families: dict[str, list[tuple[str, T]]] = {}
    for name, value in named:
        families.setdefault(_NUMBER.sub("*", name), []).append((name, value))
    rows: list[tuple[str, T]] = []
    for family, members in families.items():
        if len(members) > 1 and all(value == members[0][1] for _, value in members):
            rows.append((f"{family} ({len(members)})", members[0][1]))
        else:
            rows.extend(members)
    return rows


def ranges(names: Sequence[str]) -> str:
    """`embed, layers.0-15, norm` for the modules of a stage."""
    runs: list[tuple[str, str, str]] = []
    for name in names:
        stem, _, last = name.rpartition(".")
        if runs and last.isdecimal() and runs[-1][0] == stem and runs[-1][2].isdecimal() and int(last) == int(runs[-1][2]) + 1:
            runs[-1] = (stem, runs[-1][1], last)
        else:
            runs.append((stem, last, last))
    return ", ".join((f"{stem}." if stem else "") + (first if first == last else f"{first}-{last}") for stem, first, last in runs)


def stage_groups(values: Sequence[T]) -> list[tuple[str, T]]:
    """Stages in a row with equal values as one: [("0", a), ("1-3", b)]."""
    groups = []
    for value, members in groupby(enumerate(values), key=lambda pair: pair[1]):
        numbers = [number for number, _ in members]
        groups.append((str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}", value))
    return groups
