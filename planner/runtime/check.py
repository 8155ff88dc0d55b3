"""Whether a plan belongs to a model (the same parameters by name, shape, dtype and tie), and whether all ranks start from equal values."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from planner.errors import MismatchError
from planner.ir.fingerprint import Row, fingerprint, rows
from planner.ir.plan import Plan
from planner.runtime.world import World


def model_rows(module: nn.Module) -> tuple[Row, ...]:
    """The rows of a module's fingerprint."""
    named = module.named_parameters(remove_duplicate=False)
    return rows((fqn, tuple(p.shape), str(p.dtype).removeprefix("torch."), id(p)) for fqn, p in named)


def check_model(module: nn.Module, plan: Plan) -> None:
    """MismatchError unless the plan was made for this model; the first placement without its parameter is named where there is one."""
    found = model_rows(module)
    digest = fingerprint(found)
    if digest == plan.model.fingerprint:
        return
    count = sum(p.numel() for p in module.parameters())
    raise MismatchError(
        f"the plan is for {plan.model.name} with {plan.model.parameters:,} parameters ({plan.model.fingerprint[:19]}), "
        f"this model has {count:,} ({digest[:19]}){missing(found, plan)}; plan this model again"
    )


def missing(found: tuple[Row, ...], plan: Plan) -> str:
    """The first name that the plan has and the model lacks, as a clause; empty if all are there."""
    fqns = {row.fqn for row in found}
    gone = (name for name, _ in plan.parameters if "*" not in name and name not in fqns)
    name = next(gone, "")
    return f": it has no parameter {name}" if name else ""


def check_values(module: nn.Module, world: World) -> None:
    """MismatchError names the first parameter whose values differ between ranks, by their sums; one all_reduce of 16 bytes per parameter."""
    built = [(fqn, p) for fqn, p in module.named_parameters() if not p.is_meta]
    if not built:
        return
    sums = torch.stack([p.detach().abs().sum(dtype=torch.float64) for _, p in built]).nan_to_num().to(world.device)
    extremes = torch.stack([sums, -sums])
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    for (fqn, _), high, low in zip(built, extremes[0].tolist(), (-extremes[1]).tolist(), strict=True):
        if high != low:
            raise MismatchError(
                f"parameter {fqn} starts with different values on different ranks; "
                "call torch.manual_seed with the same seed on every rank before the model is built"
            )
