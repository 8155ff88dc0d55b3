"""Which ranks are alike, so that one of them stands for all.

Ranks of one pipeline position run the same stages. Along dp_replicate and tp their parameters have equal shapes: the runtime takes only dims
that tp divides. Along the ranks that shard (dp_shard x cp x ep) dim 0 of each parameter is cut into pieces of ceil(rows / ranks); where that
is not even, the last ranks get fewer rows or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.ir.mesh import SHARD_AXES, Mesh


@dataclass(frozen=True, slots=True)
class Alike:
    """A `rank` that stands for `count` ranks, itself among them."""

    rank: int
    count: int


def piece(rows: int, *, parts: int, index: int) -> int:
    """Rows of the piece number `index` of `parts`."""
    size = -(-rows // parts)
    return max(0, min(size, rows - index * size))


def classes(mesh: Mesh, *, rows: Iterable[int]) -> tuple[Alike, ...]:
    """The lowest rank of each class, by rank; `rows` are the sizes along tp of the dims that are sharded over data ranks."""
    sizes = sorted(set(rows))
    found: dict[tuple[int, ...], int] = {}
    firsts: dict[tuple[int, ...], int] = {}
    for rank in range(mesh.world_size):
        pieces = (piece(size, parts=mesh.shards, index=shard_index(mesh, rank)) for size in sizes)
        alike = (mesh.coordinate(rank, "pp"), *pieces)
        firsts.setdefault(alike, rank)
        found[alike] = found.get(alike, 0) + 1
    return tuple(Alike(firsts[alike], count) for alike, count in found.items())


def shard_index(mesh: Mesh, rank: int) -> int:
    """Which piece of a sharded parameter `rank` holds."""
    index = 0
    for axis in SHARD_AXES:
        index = index * mesh.degree(axis) + mesh.coordinate(rank, axis)
    return index
