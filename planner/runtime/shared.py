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
    """One shared parameter of this rank: the module that has it, its name there and in the whole model, the group of ranks that hold it and
    the global rank whose copy the others start from."""

    module: nn.Module
    fqn: str
    canonical: str
    group: dist.ProcessGroup
    source: int

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter as it is now; engines replace parameters."""
        return self.module.get_parameter(self.fqn)


def copies(parts: Sequence[StagePart], world: World) -> tuple[Copies, ...]:
    """The shared parameters of this rank's stages, in an order that all ranks agree on. Every rank of the world must call this."""
    pp = world.degrees.pp
    ranks = dist.get_process_group_ranks(world.mesh.get_group("pp"))
    sets = sorted({members_of(stages, pp) for part in parts for stages in part.sharing})
    groups = {members: group_of(members, world) for members in sets if len(members) > 1}
    found: dict[tuple[tuple[int, ...], str], Copies] = {}
    for part in parts:
        for shared in part.shared:
            members = members_of(shared.stages, pp)
            if len(members) > 1:
                copy = Copies(part.module, shared.fqns[0], shared.canonical, groups[members], ranks[shared.source % pp])
                found.setdefault((members, shared.canonical), copy)
    return tuple(copy for _, copy in sorted(found.items(), key=lambda item: item[0]))


def members_of(stages: Sequence[int], pp: int) -> tuple[int, ...]:
    """The pp coordinates of the ranks that run `stages`."""
    return tuple(sorted({stage % pp for stage in stages}))


def group_of(members: tuple[int, ...], world: World) -> dist.ProcessGroup:
    """The group of this rank's column of the mesh at the pp coordinates `members`; all ranks make the groups of all columns together."""
    if len(members) == world.degrees.pp:
        return world.mesh.get_group("pp")
    columns = world.mesh.mesh.reshape(world.degrees.pp, -1)[list(members)].T.tolist()
    groups = [dist.new_group(column) for column in columns]
    own = world.mesh.mesh.reshape(world.degrees.pp, -1).T.tolist()
    return groups[next(index for index, column in enumerate(own) if dist.get_rank() in column)]


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
