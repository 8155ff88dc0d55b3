"""One microbatch through the whole model: forward, loss and backward under the guards of tensor parallelism.

In forward no operator may communicate on its own: `ExplicitRedistributionContext` raises where one would. (Two redistributions that cost
nothing remain: a row-parallel linear keeps its bias on one rank, and an embedding split by rows masks foreign token ids.) In backward the
recorder of `planner.runtime.record` is the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import ExplicitRedistributionContext
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel

from planner.errors import MismatchError
from planner.runtime.placements import replicate_tree, tensors
from planner.runtime.world import World

Loss = Callable[[Any, Any], Tensor]


def on_mesh(batch: Any, world: World) -> Any:
    """`batch` as the module takes it: replicated DTensors where tp > 1."""
    return replicate_tree(batch, world.tp) if world.degrees.tp > 1 else batch


def guards(world: World) -> AbstractContextManager[object]:
    """What surrounds a forward where tp > 1."""
    if world.degrees.tp == 1:
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(implicit_replication())
    stack.enter_context(ExplicitRedistributionContext(strict=False))
    return stack


def implicit(world: World) -> AbstractContextManager[object]:
    """What surrounds a backward where tp > 1: tensors made inside count as replicated."""
    return implicit_replication() if world.degrees.tp > 1 else nullcontext()


def loss_guard(output: Any) -> AbstractContextManager[object]:
    """`loss_parallel` where the output is sharded on its last dim, the classes; it must surround loss and backward."""
    sharded = (leaf for leaf in tensors(output) if isinstance(leaf, DTensor) and leaf.ndim > 1)
    return loss_parallel() if any(leaf.placements[-1].is_shard(leaf.ndim - 1) for leaf in sharded) else nullcontext()


def whole(loss: Tensor) -> Tensor:
    """The loss as a plain tensor; MismatchError if it is not the same on every rank of the tensor-parallel group."""
    if not isinstance(loss, DTensor):
        return loss
    if not all(placement.is_replicate() for placement in loss.placements):
        raise MismatchError(f"the loss arrives as {loss.placements} along tp instead of R; plan this model again")
    return loss.to_local()
