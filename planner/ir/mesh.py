"""The device mesh: how many ranks along each axis, and which ranks form a group.

Ranks are numbered with `pp` outermost and `tp` innermost: tensor parallelism stays inside a node, pipeline stages span nodes.
`cp` and `ep` are part of the vocabulary; they are 1 until the runtime executes them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "ep", "tp")
"""Axis names, outermost first."""


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
        """Ranks along `axis`."""
        degree: int = getattr(self, axis)
        return degree

    @property
    def world_size(self) -> int:
        size = 1
        for axis in AXES:
            size *= self.degree(axis)
        return size

    @property
    def dp(self) -> int:
        """Ranks that hold different samples: dp_replicate x dp_shard."""
        return self.dp_replicate * self.dp_shard

    def stride(self, axis: str) -> int:
        """Distance in rank numbers between neighbours along `axis`."""
        stride = 1
        for inner in AXES[AXES.index(axis) + 1 :]:
            stride *= self.degree(inner)
        return stride

    def coordinate(self, rank: int, axis: str) -> int:
        """Position of `rank` along `axis`."""
        return rank // self.stride(axis) % self.degree(axis)
