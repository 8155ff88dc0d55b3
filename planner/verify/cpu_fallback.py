"""How DTensor moves a shard from one dim to another, on the device that a plan is for.

On a CPU it gathers the whole tensor and keeps a piece, because gloo lacks all_to_all; on every other device it runs all_to_all. A rehearsal is
on a CPU whatever the plan is for: a plan that counts on all_to_all along tp is rehearsed with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import placement_types

from planner.ir.plan import Plan


def counts_on_all_to_all(plan: Plan) -> bool:
    """Whether redistributions along tp are predicted to run as all_to_all."""
    return any((each.kind, each.axis) == ("all_to_all", "tp") for stage in plan.prediction.collectives for each in stage)


@contextmanager
def as_on_device(plan: Plan) -> Iterator[None]:
    """Inside, DTensor moves shards as on the device of the plan."""
    fallback = placement_types.shard_dim_alltoall
    if counts_on_all_to_all(plan):
        placement_types.shard_dim_alltoall = all_to_all
    try:
        yield
    finally:
        placement_types.shard_dim_alltoall = fallback


def all_to_all(tensor: Tensor, gather_dim: int, shard_dim: int, mesh: DeviceMesh, mesh_dim: int) -> Tensor:
    """What runs on other devices than CPUs."""
    moved: Tensor = torch.ops._dtensor.shard_dim_alltoall(tensor, gather_dim, shard_dim, mesh.get_group(mesh_dim).group_name)
    return moved
