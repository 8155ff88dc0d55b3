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
