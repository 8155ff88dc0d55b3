"""The identity of a model: a digest over its parameters' names, shapes, dtypes and ties. Two models with one digest accept one plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One name of one parameter; `tie` is the canonical FQN it shares storage with (its own where it is not tied)."""

    fqn: str
    shape: tuple[int, ...]
    dtype: str
    tie: str

    def __str__(self) -> str:
        tied = "" if self.tie == self.fqn else f" tied to {self.tie}"
        return f"{self.fqn} {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}{tied}"


def fingerprint(rows: Iterable[Row]) -> str:
    """`sha256:` and 64 hex digits over the sorted rows."""
    text = "\n".join(str(row) for row in sorted(rows))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def rows(named: Iterable[tuple[str, tuple[int, ...], str, int]]) -> tuple[Row, ...]:
    """Rows from (FQN, shape, dtype, identity) in the model's order; equal identities are ties, named after the first of them."""
    first: dict[int, str] = {}
    found = []
    for fqn, shape, dtype, identity in named:
        found.append(Row(fqn, shape, dtype, first.setdefault(identity, fqn)))
    return tuple(found)


def first_difference(expected: Iterable[Row], actual: Iterable[Row]) -> str:
    """The first row in which two models differ, as one line; empty if they are alike."""
    left, right = {row.fqn: row for row in expected}, {row.fqn: row for row in actual}
    for fqn in sorted(left.keys() | right.keys()):
        if left.get(fqn) != right.get(fqn):
            return f"{fqn}: the plan has {left.get(fqn) or 'no such parameter'}, the model has {right.get(fqn) or 'no such parameter'}"
    return ""
