"""Parameters, buffers and batches as DTensors on the tensor-parallel axis.

Every tensor of the module becomes a DTensor, Replicate included, so that nothing inside a tensor-parallel region is left to chance.
Where tp = 1 everything stays a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import placement_types as torch_placements
from torch.utils import _pytree as pytree

from planner.errors import MismatchError
from planner.ir.names import lookup
from planner.ir.placement import Placement
from planner.ir.plan import PLACEMENT_AXES, Plan

TP = PLACEMENT_AXES.index("tp")
MASK = "mask"
"""The reduction of a lookup in a table split by rows; DTensor's own masked Partial sums as well."""


def to_torch(placement: Placement) -> torch_placements.Placement:
    """Our placement as torch's; the masked sum of an embedding counts as a sum."""
    if placement.is_shard:
        return Shard(placement.dim)
    return Replicate() if placement.is_replicate else Partial("sum" if placement.reduction == MASK else placement.reduction)


def tp_placement(plan: Plan, fqns: tuple[str, ...]) -> Placement:
    """The placement along tp of the parameter with these names (more than one: tied); MismatchError if the plan names none of them.

    A stage may know a tied parameter by a later name only: all of its names count.
    """
    tied = (name for group in plan.ties if any(fqn in group for fqn in fqns) for name in group)
    for fqn in (*fqns, *tied):
        found = lookup(plan.parameters, fqn)
        if found is not None:
            return found[TP]
    raise MismatchError(f"the plan has no placement for parameter {fqns[0]}; plan this model again")


def parameter_names(module: nn.Module) -> dict[nn.Parameter, tuple[str, ...]]:
    """All names of each parameter, in the module's order; the first is canonical."""
    names: dict[nn.Parameter, tuple[str, ...]] = {}
    for fqn, parameter in module.named_parameters(remove_duplicate=False):
        names[parameter] = (*names.get(parameter, ()), fqn)
    return names


def distribute(module: nn.Module, owners: tuple[str, ...], plan: Plan, tp: DeviceMesh) -> None:
    """Replaces the parameters and buffers that the submodules `owners` themselves own by DTensors on `tp`; tied ones stay one parameter.

    No communication: every rank holds the same whole tensor and keeps its slice.
    """
    names = parameter_names(module)
    for owner in map(module.get_submodule, owners):
        for _, parameter in tuple(owner.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                replace(module, names[parameter], shard(parameter, names[parameter], plan, tp))
        for name, buffer in tuple(owner.named_buffers(recurse=False)):
            setattr(owner, name, distribute_tensor(buffer, tp, [Replicate()], src_data_rank=None))


def replace(module: nn.Module, fqns: tuple[str, ...], parameter: nn.Parameter) -> None:
    """Puts `parameter` where all of its names are."""
    for fqn in fqns:
        owner, _, name = fqn.rpartition(".")
        setattr(module.get_submodule(owner), name, parameter)


def shard(parameter: nn.Parameter, fqns: tuple[str, ...], plan: Plan, tp: DeviceMesh) -> nn.Parameter:
    """This rank's slice of `parameter`, as the plan places it on `tp`."""
    placement = tp_placement(plan, fqns)
    check_divisible(parameter, placement, fqns[0], tp.size())
    sliced = distribute_tensor(parameter.detach(), tp, [to_torch(placement)], src_data_rank=None)
    return nn.Parameter(sliced, requires_grad=parameter.requires_grad)


def check_divisible(parameter: Tensor, placement: Placement, fqn: str, degree: int) -> None:
    """MismatchError where a dim cannot be cut into equal parts."""
    if not placement.is_shard:
        return
    if placement.dim >= parameter.ndim or parameter.shape[placement.dim] % degree:
        raise MismatchError(f"{fqn} {tuple(parameter.shape)} cannot be {placement} over tp={degree}; plan this model again")


def replicate_tree(tree: Any, tp: DeviceMesh) -> Any:
    """`tree` with each plain tensor wrapped as a replicated DTensor on `tp`."""

    def wrap(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and not isinstance(leaf, DTensor):
            return DTensor.from_local(leaf, tp, [Replicate()], run_check=False)
        return leaf

    return pytree.tree_map(wrap, tree)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors among the leaves of a pytree."""
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
