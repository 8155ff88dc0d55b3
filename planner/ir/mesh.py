"""The device mesh: how many ranks along each axis, and which ranks form a group.

Ranks are numbered with `pp` outermost and `tp` innermost: tensor parallelism stays inside a node, pipeline stages span nodes.

Ranks along dp_replicate, dp_shard and ep hold different samples, those along cp different tokens of the same samples; so gradients are summed
over all four. A group over several axes is named by them in the order of the mesh, without axes of one rank: `dp_shard*cp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import prod

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "ep", "tp")
"""Axis names, outermost first."""

SAMPLE_AXES = ("dp_replicate", "dp_shard", "ep")
"""Along these, ranks hold different samples."""

SHARD_AXES = ("dp_shard", "cp", "ep")
"""ZeRO shards over these together."""

DATA_AXES = ("dp_replicate", *SHARD_AXES)
"""Along these, ranks hold different data: gradients are summed over them."""


@dataclass(frozen=True, slots=True, order=True)
class Mesh:
    """Degrees along each axis; their product is the world size."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            assert getattr(self, field.name) >= 1, (field.name, self)

    def __str__(self) -> str:
        shown = [f"{axis}={self.degree(axis)}" for axis in AXES if self.degree(axis) > 1]
        return " ".join(shown) or "single device"

    def degree(self, axis: str) -> int:
        """Ranks along `axis`, or along several joined ones."""
        return prod(getattr(self, name) for name in axis.split("*"))

    @property
    def world_size(self) -> int:
        return prod(map(self.degree, AXES))

    @property
    def dp(self) -> int:
        """Ranks that hold different samples: dp_replicate x dp_shard x ep."""
        return prod(map(self.degree, SAMPLE_AXES))

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards: dp_shard x cp x ep."""
        return prod(map(self.degree, SHARD_AXES))

    @property
    def data(self) -> int:
        """Ranks that hold different data, samples or tokens: dp_replicate x dp_shard x cp x ep."""
        return prod(map(self.degree, DATA_AXES))

    def joined(self, axes: Iterable[str]) -> str:
        """The name of the group over `axes`, given outermost first."""
        axes = tuple(axes)
        return "*".join(axis for axis in axes if self.degree(axis) > 1) or axes[0]

    def stride(self, axis: str) -> int:
        """Distance in rank numbers between neighbours along `axis`, for joined ones along the innermost."""
        innermost = axis.rpartition("*")[2]
        return prod(map(self.degree, AXES[AXES.index(innermost) + 1 :]))

    def coordinate(self, rank: int, axis: str) -> int:
        """Position of `rank` along `axis`."""
        return rank // self.stride(axis) % self.degree(axis)

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks that differ from `rank` at most along `axis`, or along several joined ones, ascending."""
        fixed = [name for name in AXES if name not in axis.split("*")]
        own = [self.coordinate(rank, name) for name in fixed]
        return tuple(other for other in range(self.world_size) if [self.coordinate(other, name) for name in fixed] == own)
