"""Data parallelism: FSDP2, HSDP or replication, per block copy and then for the rest of the module.

    zero 0   replicate over all data axes: one all_reduce per unit at the last microbatch
    zero 1   shards over dp_shard x cp x ep, gathered once and kept; reduce_scatter at the last microbatch
    zero 2   the same, reduce_scatter at every microbatch
    zero 3   gathered for forward and, blocks only, again for backward; reduce_scatter at every microbatch

With dp_replicate > 1 the shards are replicated (HSDP) and an all_reduce over dp_replicate follows at the last microbatch. Gradients are
summed, never averaged: `Job.step` scales each microbatch's loss by its share of the global weight.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from planner.errors import MismatchError
from planner.ir.mesh import DATA_AXES, SHARD_AXES
from planner.ir.names import matches
from planner.ir.plan import Plan
from planner.runtime.world import World


def is_needed(plan: Plan) -> bool:
    """Whether the plan asks for an engine: several data-parallel ranks, or a compute dtype other than the parameters'."""
    return plan.mesh.data > 1 or plan.model.compute_dtype != plan.model.dtype


def replicates(plan: Plan) -> bool:
    """Whether parameters are whole on every data-parallel rank."""
    return plan.schedule.zero == 0 or plan.mesh.shards == 1


def units(module: nn.Module, plan: Plan) -> tuple[tuple[str, nn.Module], ...]:
    """The block copies present in `module` that are sharded one by one; what shares a parameter with the rest is left to the root."""
    globs = tuple(block.glob for block in plan.model.blocks)
    blocks = tuple((fqn, block) for fqn, block in module.named_modules() if any(matches(glob, fqn) for glob in globs))
    return tuple((fqn, block) for fqn, block in blocks if not shares_parameters(module, fqn) and not is_nested(fqn, blocks))


def is_nested(fqn: str, blocks: tuple[tuple[str, nn.Module], ...]) -> bool:
    """Whether the block `fqn` lies inside another of `blocks`."""
    return any(fqn.startswith(f"{outer}.") for outer, _ in blocks)


def shares_parameters(module: nn.Module, fqn: str) -> bool:
    """Whether a parameter inside the submodule `fqn` also has a name outside it."""
    inside = {id(p) for p in module.get_submodule(fqn).parameters()}
    outside = (p for name, p in module.named_parameters(remove_duplicate=False) if not name.startswith(f"{fqn}."))
    return any(id(p) in inside for p in outside)


def policy(plan: Plan) -> MixedPrecisionPolicy:
    """Compute and reduction dtypes of the plan, where they differ from the parameters'."""
    info = plan.model
    if info.compute_dtype == info.dtype and info.reduce_dtype == info.dtype:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=getattr(torch, info.compute_dtype), reduce_dtype=getattr(torch, info.reduce_dtype))


def shard_mesh(world: World) -> DeviceMesh:
    """The mesh of fully_shard: dp_shard x cp x ep as one dim, with dp_replicate before it where that has several ranks (HSDP)."""
    shards = world.along(SHARD_AXES)
    if world.degrees.dp_replicate == 1:
        return shards
    (name,) = shards.mesh_dim_names or ("",)
    return world.mesh["dp_replicate", name]


def engage(unit: nn.Module, plan: Plan, world: World, *, root: bool) -> None:
    """Puts one unit, whose parameters are in place on tp, under FSDP2 or replication; the root last.

    Raises MismatchError for a scalar parameter, which FSDP2 cannot take.
    """
    refuse_scalars(unit)
    zero = plan.schedule.zero
    if plan.mesh.data > 1 and replicates(plan):
        engine = replicate(unit, mesh=world.along(DATA_AXES), mp_policy=policy(plan))
    else:
        engine = fully_shard(unit, mesh=shard_mesh(world), reshard_after_forward=zero == 3 and not root, mp_policy=policy(plan))
    if root:
        sum_gradients(engine)


def sum_gradients(engine: FSDPModule) -> None:
    """Reductions add up and divide by nothing."""
    for module in engine.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def refuse_scalars(unit: nn.Module) -> None:
    """MismatchError names a parameter without dims."""
    for fqn, parameter in unit.named_parameters():
        if parameter.ndim == 0:
            raise MismatchError(f"parameter {fqn} is a scalar, which cannot be sharded or replicated; give it the shape (1,)")


def set_last(module: nn.Module, plan: Plan, *, last: bool) -> None:
    """Tells the engine whether this microbatch is the step's last, and so whether gradients are reduced after it."""
    if not isinstance(module, FSDPModule):
        return
    module.set_is_last_backward(last)
    if plan.schedule.zero in (0, 1) or replicates(plan):
        module.set_requires_gradient_sync(last)
    elif plan.mesh.dp_replicate > 1:
        module.set_requires_all_reduce(last)
    if plan.schedule.zero < 3:
        module.set_reshard_after_backward(last)
