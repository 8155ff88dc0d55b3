"""What happens to gradients between backward and the optimizer: pending sums over tp, the check of placements, clipping.

norm^2 = sum over parameters and distinct elements g^2, each counted once: a shard's sum is divided by the number of ranks that hold it
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.errors import MismatchError
from planner.runtime.placements import local
from planner.runtime.world import World

Named = tuple[tuple[str, nn.Parameter], ...]


def reduce_partial(named: Named, world: World) -> None:
    """Sums the gradients of replicated parameters that are still Partial over tp, all of one dtype in one all_reduce."""
    pending = [p for _, p in named if isinstance(p, DTensor) and isinstance(p.grad, DTensor) and is_pending(p, p.grad)]
    for dtype in sorted({p.dtype for p in pending}, key=str):
        reduce_bucket([p for p in pending if p.dtype == dtype], world)


def is_pending(parameter: DTensor, grad: DTensor) -> bool:
    """Whether the gradient is a sum still to do."""
    return all(placement.is_replicate() for placement in parameter.placements) and any(p.is_partial() for p in grad.placements)


def reduce_bucket(parameters: list[nn.Parameter], world: World) -> None:
    """One all_reduce for gradients of replicated parameters."""
    grads = [local(grad) for parameter in parameters if (grad := parameter.grad) is not None]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat, group=world.mesh.get_group("tp"))
    for parameter, total in zip(parameters, flat.split([grad.numel() for grad in grads]), strict=True):
        assert isinstance(parameter, DTensor)
        shape = parameter.to_local().shape
        parameter.grad = DTensor.from_local(total.view(shape), parameter.device_mesh, parameter.placements, run_check=False)


def check_placements(named: Named) -> None:
    """MismatchError unless every gradient lies as its parameter does."""
    for fqn, parameter in named:
        if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor) and parameter.grad.placements != parameter.placements:
            raise MismatchError(f"the gradient of {fqn} is {parameter.grad.placements}, the parameter {parameter.placements}; plan again")


def holders(parameter: Tensor, world: World) -> int:
    """How many ranks of a stage hold the same elements."""
    ranks = world.degrees.world_size // world.degrees.pp
    if not isinstance(parameter, DTensor):
        return ranks
    for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
        ranks //= 1 if placement.is_replicate() else size
    return ranks


def norm(parameters: Iterable[nn.Parameter], world: World) -> Tensor:
    """The 2-norm of the gradients of `parameters` over all ranks, float64, the same on every rank: one all_reduce of 8 bytes."""
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for parameter in parameters:
        if parameter.grad is not None:
            total += local(parameter.grad).double().square().sum() / holders(parameter, world)
    dist.all_reduce(total)
    return total.sqrt()


def scale(parameters: Iterable[nn.Parameter], max_norm: float, found: Tensor) -> None:
    """Scales the gradients so that a norm of `found` becomes at most `max_norm`."""
    factor = (max_norm / (found + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            grad = local(parameter.grad)
            grad.mul_(factor.to(grad.dtype))
