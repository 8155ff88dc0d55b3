"""Where a tensor lives along one mesh axis, and the text form of it.

A `Placement` is `S(dim)`, `R` or `P(op)` as in DTensor. A `Layout` is what one edge of the graph carries: the placement of the value in
forward and of its gradient in backward. Only four kinds of layout are meaningful on one axis:

    value  gradient   meaning
    R      R          every rank computes the same
    R      P(sum)     every rank consumes the whole value in part (the input of a column-parallel linear)
    S(d)   S(d)       every rank holds a slice
    P(sum) R          every rank holds a summand (the output of a row-parallel linear)

A tensor without gradient uses the gradient placement of the same row (R, S(d) or R), so that layouts compare by equality.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import PlanError

_SHARD = re.compile(r"S\((\d+)\)")
_PARTIAL = re.compile(r"P\((\w+)\)")


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """One placement: `kind` is "S", "R" or "P"; `dim` is the sharded tensor dim of "S"; `reduction` the pending reduction of "P"."""

    kind: str
    dim: int = 0
    reduction: str = ""

    def __str__(self) -> str:
        if self.kind == "S":
            return f"S({self.dim})"
        return "R" if self.kind == "R" else f"P({self.reduction})"

    @property
    def is_shard(self) -> bool:
        return self.kind == "S"

    @property
    def is_partial(self) -> bool:
        return self.kind == "P"

    @property
    def is_replicate(self) -> bool:
        return self.kind == "R"


def Shard(dim: int) -> Placement:  # noqa: N802 (the field's name for it)
    """A slice of tensor dim `dim`, which is never negative here."""
    assert dim >= 0, dim
    return Placement("S", dim)


def Replicate() -> Placement:  # noqa: N802
    """The whole tensor on every rank."""
    return Placement("R")


def Partial(reduction: str = "sum") -> Placement:  # noqa: N802
    """A summand on every rank, waiting for its reduction."""
    return Placement("P", 0, reduction)


def parse_placement(text: str) -> Placement:
    """The inverse of `str(placement)`; PlanError names what was found."""
    if text == "R":
        return Replicate()
    if match := _SHARD.fullmatch(text):
        return Shard(int(match[1]))
    if match := _PARTIAL.fullmatch(text):
        return Partial(match[1])
    raise PlanError(f"placement {text!r} is not one of S(dim), R, P(reduction)")


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Placements of a value and of its gradient, on one mesh axis."""

    value: Placement
    grad: Placement

    def __str__(self) -> str:
        return f"{self.value}/{self.grad}"


R = Layout(Replicate(), Replicate())
"""The same on every rank, forward and backward."""
RP = Layout(Replicate(), Partial())
"""The whole value, of which every rank makes only partial use: the gradient is a sum still to do."""
P = Layout(Partial(), Replicate())
"""A sum still to do in forward; its gradient is whole on every rank."""


def S(dim: int) -> Layout:  # noqa: N802
    """A slice of dim `dim`, forward and backward."""
    return Layout(Shard(dim), Shard(dim))


def without_grad(layout: Layout) -> Layout:
    """The layout as a tensor without gradient writes it: `R/P(sum)` becomes `R/R`."""
    return R if layout.value.is_replicate else layout
