"""The shape that each parameter has on a rank, as the plan's placements say.

Sharding along tp comes first, then along the data ranks together (dp_shard x cp x ep), by pieces of ceil(rows / ranks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from planner.ir.names import lookup
from planner.ir.placement import Placement
from planner.ir.plan import PLACEMENT_AXES, Plan
from planner.runtime.job import Job
from planner.runtime.placements import local
from planner.verify.alike import piece, shard_index


@dataclass(frozen=True, slots=True)
class Whole:
    """A parameter of the model: shape, dtype, and its names, the first one canonical."""

    shape: tuple[int, ...]
    dtype: str
    fqns: tuple[str, ...]


def wholes(model: nn.Module) -> dict[str, Whole]:
    """The parameters of a model by each of their names."""
    names: dict[nn.Parameter, list[str]] = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(fqn)
    found = [Whole(tuple(parameter.shape), str(parameter.dtype), tuple(fqns)) for parameter, fqns in names.items()]
    return {fqn: whole for whole in found for fqn in whole.fqns}


def placements_of(whole: Whole, plan: Plan) -> tuple[Placement, ...] | None:
    """The parameter's placements by PLACEMENT_AXES; None if the plan has none."""
    found = (lookup(plan.parameters, fqn) for fqn in whole.fqns)
    return next((placed for placed in found if placed is not None), None)


def along_tp(whole: Whole, placements: tuple[Placement, ...], *, tp: int) -> tuple[int, ...]:
    """The shape of the slice along tp."""
    placed = placements[PLACEMENT_AXES.index("tp")]
    return tuple(size // tp if placed.is_shard and placed.dim == dim else size for dim, size in enumerate(whole.shape))


def sharded_rows(model: Mapping[str, Whole], plan: Plan) -> Iterator[int]:
    """The size, along tp, of each dim that data ranks share."""
    for whole in model.values():
        placements = placements_of(whole, plan)
        if placements is not None and (placed := placements[PLACEMENT_AXES.index("dp_shard")]).is_shard:
            yield along_tp(whole, placements, tp=plan.mesh.tp)[placed.dim]


def expected(whole: Whole, plan: Plan, *, rank: int) -> tuple[int, ...] | None:
    """The shape on `rank`; None if the plan does not place the parameter."""
    placements = placements_of(whole, plan)
    if placements is None:
        return None
    shape = list(along_tp(whole, placements, tp=plan.mesh.tp))
    placed = placements[PLACEMENT_AXES.index("dp_shard")]
    if placed.is_shard:
        shape[placed.dim] = piece(shape[placed.dim], parts=plan.mesh.shards, index=shard_index(plan.mesh, rank))
    return tuple(shape)


def differences(job: Job, model: Mapping[str, Whole], *, rank: int) -> Iterator[str]:
    """One line per parameter of the job whose shape or dtype is not what the plan says."""
    for fqn, parameter in job.named_parameters():
        whole = model[fqn]
        wanted = expected(whole, job.plan, rank=rank)
        found, dtype = tuple(local(parameter).shape), str(parameter.dtype)
        if wanted is None:
            yield f"{fqn}: the plan has no placement for it"
        elif (found, dtype) != (wanted, whole.dtype):
            yield f"{fqn}: the plan says {described(wanted, whole.dtype)}, the rank has {described(found, dtype)}"


def described(shape: tuple[int, ...], dtype: str) -> str:
    """`2x16 float32`."""
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype.removeprefix('torch.')}"
