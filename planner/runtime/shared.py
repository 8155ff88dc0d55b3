"""Parameters that several stages hold: a tied embedding and head, or a block that is called on two stages.

Every stage has a copy. They start equal, each stage's gradient is its own share of the sum, and before clipping and the optimizer the
shares are added up, so that the copies stay equal; the norm counts the owner's copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from planner.errors import MismatchError
from planner.runtime.placements import local
from planner.runtime.stage import StagePart
from planner.runtime.world import World


@dataclass(frozen=True, slots=True)
class Copies:
    """One shared parameter of this rank: the module that has it, its name there, the group of ranks that hold it and the global rank whose
    copy the others start from."""

    module: nn.Module
    fqn: str
    group: dist.ProcessGroup
    source: int

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter as it is now; engines replace parameters."""
        return self.module.get_parameter(self.fqn)


def copies(parts: Sequence[StagePart], world: World) -> tuple[Copies, ...]:
    """The shared parameters of this rank's stages, in an order that all ranks agree on; ranks that hold them must all call this."""
    ranks = dist.get_process_group_ranks(world.mesh.get_group("pp"))
    found = {}
    for part in parts:
        for shared in part.shared:
            members = tuple(sorted({ranks[stage % len(ranks)] for stage in shared.stages}))
            if len(members) > 1:
                found.setdefault((members, shared.canonical), (part.module, shared.fqns[0], ranks[shared.source % len(ranks)]))
    groups = {members: dist.new_group(list(members), use_local_synchronization=True) for members in sorted({key[0] for key in found})}
    return tuple(Copies(module, fqn, groups[key[0]], source) for key, (module, fqn, source) in sorted(found.items(), key=lambda item: item[0]))


def broadcast_values(shared: Sequence[Copies]) -> None:
    """Makes all copies equal to that of the stage which has the parameter's canonical name; call it after the parameters have values."""
    with torch.no_grad():
        for item in shared:
            dist.broadcast(local(item.parameter.detach()), src=item.source, group=item.group)


def sum_gradients(shared: Sequence[Copies]) -> None:
    """Adds up the gradients of all copies, in place; call it once per step, after the last backward and before clipping.

    Raises MismatchError if a gradient does not lie as its parameter does: sums over tp come first.
    """
    for item in shared:
        parameter = item.parameter
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if getattr(parameter.grad, "placements", None) != getattr(parameter, "placements", None):
            raise MismatchError(f"the gradient of {item.fqn} is {parameter.grad.placements}, the parameter {parameter.placements}; plan again")
        dist.all_reduce(local(parameter.grad), group=item.group)


def counted(parts: Sequence[StagePart]) -> Iterator[tuple[str, nn.Parameter]]:
    """This rank's parameters by name, without those that an earlier stage counts: each parameter of the model on exactly one stage."""
    seen: set[int] = set()
    for part in parts:
        for fqn, parameter in part.module.named_parameters():
            if part.owns(fqn) and id(parameter) not in seen:
                seen.add(id(parameter))
                yield fqn, parameter
