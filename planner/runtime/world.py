"""The processes of a job: which device this rank uses, and the device mesh of a plan.

Axes are outermost first, cp and ep only where they have several ranks: the ranks of one tensor-parallel group are neighbours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from planner.errors import MismatchError
from planner.ir.mesh import AXES, DATA_AXES, SAMPLE_AXES, Mesh


@dataclass(frozen=True)
class World:
    """The mesh as torch knows it (`mesh`) and as the plan does (`degrees`), and this rank's device."""

    mesh: DeviceMesh
    degrees: Mesh
    device: torch.device

    @property
    def tp(self) -> DeviceMesh:
        """The 1-D tensor-parallel mesh of this rank."""
        return self.mesh["tp"]

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes with more than one rank along which ranks hold different samples or tokens."""
        return tuple(axis for axis in DATA_AXES if self.degrees.degree(axis) > 1)

    @property
    def dp_rank(self) -> int:
        """Which share of the global batch belongs to this rank."""
        rank = 0
        for axis in SAMPLE_AXES:
            rank = rank * self.degrees.degree(axis) + self.coordinate(axis)
        return rank

    def coordinate(self, axis: str) -> int:
        """This rank's position along `axis`."""
        return self.degrees.coordinate(dist.get_rank(), axis)

    def along(self, axes: tuple[str, ...]) -> DeviceMesh:
        """The 1-D mesh over `axes` together; those of one rank do not matter."""
        names = tuple(axis for axis in axes if self.degrees.degree(axis) > 1) or axes[:1]
        return self.mesh[names[0]] if len(names) == 1 else self.mesh[names]._flatten(flat_name(names))

    def sum_over(self, tensor: torch.Tensor, axes: tuple[str, ...]) -> torch.Tensor:
        """`tensor` summed over the ranks of `axes`, in place; one all_reduce per axis with more than one rank."""
        for axis in axes:
            if self.degrees.degree(axis) > 1:
                dist.all_reduce(tensor, group=self.mesh.get_group(axis))
        return tensor


def flat_name(axes: tuple[str, ...]) -> str:
    """What torch calls the mesh dim over `axes` together."""
    return "_".join(axes)


def default_device() -> torch.device:
    """The GPU of this local rank where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def world_size() -> int:
    """How many ranks run: those of the process group, else what torchrun announced, else 1."""
    if dist.is_initialized():
        return int(dist.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_world(degrees: Mesh, ranks: int) -> None:
    """MismatchError unless `ranks` processes are what the plan needs."""
    if degrees.world_size != ranks:
        raise MismatchError(
            f"the plan needs {degrees.world_size} ranks ({degrees}), {ranks} are running; "
            f"start it with torchrun --nproc-per-node, or plan again with --gpus {ranks}"
        )
    for axis in ("cp", "ep"):
        if degrees.degree(axis) > 1:
            raise MismatchError(f"the plan has {axis}={degrees.degree(axis)}, which this version cannot run; plan again with --mesh {axis}=1")


def start(degrees: Mesh) -> World:
    """The process group (gloo on CPU, nccl on CUDA, unless it is there already) and the mesh.

    Raises MismatchError where the number of ranks differs from the plan's.
    """
    check_world(degrees, world_size())
    device = default_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        init_process_group(device)
    axes = tuple(axis for axis in AXES if axis not in ("cp", "ep") or degrees.degree(axis) > 1)
    shape = tuple(degrees.degree(axis) for axis in axes)
    return World(init_device_mesh(device.type, shape, mesh_dim_names=axes), degrees, device)


def init_process_group(device: torch.device) -> None:
    """Joins the group that torchrun announced in the environment; a process started alone makes a group of its own."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
