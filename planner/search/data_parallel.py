"""What data parallelism moves for one stage, as FSDP2 does it: one unit per block copy and one for the rest.

    gather   all_gather over dp_shard of the padded shards in the compute dtype          zero 1, 2: once a step; 3: forward and backward of
                                                                                       every microbatch
    reduce   reduce_scatter over dp_shard in the reduce dtype, then all_reduce over       zero 1: once a step; 2, 3: every microbatch; with
             dp_replicate of the shard; zero 0: all_reduce over all of dp                 several stages once a step at every level

A parameter's shard along dim 0 is padded to equal sizes: bytes = dp_shard * ceil(dim0 / dp_shard) * rest * itemsize. The gather of one unit
runs beside the compute of the unit before it, the reduction beside the backward of the next; the first gather and the last reduction of a pass
have nothing to hide behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from costmodels.hardware import Cluster
from planner.ir.mesh import Mesh
from planner.ir.strategy import Collective
from planner.search.candidates import Candidate
from planner.search.price import Precision, exposed_s, traffic_s
from planner.search.units import PlacedParameter, PlacedUnit


@dataclass(frozen=True, slots=True)
class Exposed:
    """Seconds that nothing hides: forward and backward of every microbatch, and once per step."""

    per_microbatch_s: tuple[float, float]
    once_s: float


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Gathers and reductions of one pass over a stage, one entry per unit, and how often a step makes that pass."""

    gathers: tuple[Collective, ...]
    reductions: tuple[tuple[Collective, ...], ...]
    forward_gathers: int
    backward_gathers: int
    reduces: int
    microbatches: int

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All of a step."""
        found = [_times(c, "forward", self.forward_gathers) for c in self.gathers]
        found += [_times(c, "backward", self.backward_gathers) for c in self.gathers]
        found += [_times(c, "backward", self.reduces) for group in self.reductions for c in group]
        return tuple(c for c in found if c.count)

    def exposed(self, cluster: Cluster, mesh: Mesh, *, forward_s: float, backward_s: float) -> Exposed:
        """Seconds of gathers and reductions that the given compute of one microbatch does not hide."""
        gather = [traffic_s((c,), cluster, mesh) for c in self.gathers]
        reduce = [traffic_s(group, cluster, mesh) for group in self.reductions]
        forward = exposed_s(gather, forward_s) if self.forward_gathers else 0.0
        both = [*gather, *reduce] if self.backward_gathers and self.reduces == self.microbatches else gather
        backward = 0.0
        if self.backward_gathers or self.reduces == self.microbatches > 1:
            backward = exposed_s(both if self.backward_gathers else reduce, backward_s)
        once = 0.0
        if self.forward_gathers and self.forward_gathers < self.microbatches:
            once, forward = forward, 0.0
        if self.reduces < self.microbatches or (self.microbatches == 1 and not self.backward_gathers):
            once += exposed_s(reduce, backward_s)
        return Exposed((forward, backward), once)


def stage_traffic(part: Sequence[PlacedUnit], candidate: Candidate, precision: Precision) -> DataParallel:
    """What one rank of a stage made of `part` moves along dp_shard and dp_replicate."""
    mesh, count, zero = candidate.mesh, candidate.microbatches, candidate.zero
    groups = [group for group in fsdp_units(part) if group]
    gathers = tuple(_gather(group, mesh, precision) for group in groups) if zero else ()
    reductions = tuple(_reduction(group, mesh, zero, precision) for group in groups) if mesh.dp > 1 else ()
    often = count if zero == 3 else min(1, zero)
    reduces = count if zero >= 2 and mesh.pp == 1 else 1
    return DataParallel(gathers, reductions, often, count if zero == 3 else 0, reduces if reductions else 0, count)


def fsdp_units(part: Iterable[PlacedUnit]) -> tuple[tuple[PlacedParameter, ...], ...]:
    """The parameters of each block copy, then all others once each."""
    part = tuple(part)
    rest = {p.parameter.fqn: p for unit in part if not unit.block for p in unit.parameters}
    blocks = [tuple(p for p in unit.parameters if p.parameter.fqn not in rest) for unit in part if unit.block]
    return (*blocks, tuple(rest.values()))


def padded_numel(shape: Sequence[int], shards: int) -> int:
    """Elements of all shards of one parameter together, each padded to the largest."""
    return shards * -(-shape[0] // shards) * prod(shape[1:]) if shape else shards


def _gather(group: Sequence[PlacedParameter], mesh: Mesh, precision: Precision) -> Collective:
    numel = sum(padded_numel(p.local_shape(mesh.tp), mesh.dp_shard) for p in group)
    return Collective("all_gather", "dp_shard", "forward", numel * precision.compute_bytes)


def _reduction(group: Sequence[PlacedParameter], mesh: Mesh, zero: int, precision: Precision) -> tuple[Collective, ...]:
    trained = [p.local_shape(mesh.tp) for p in group if p.parameter.trainable]
    if not zero:
        return (Collective("all_reduce", "dp_replicate", "backward", sum(map(prod, trained)) * precision.reduce_bytes),)
    nbytes = sum(padded_numel(shape, mesh.dp_shard) for shape in trained) * precision.reduce_bytes
    scatter = Collective("reduce_scatter", "dp_shard", "backward", nbytes)
    if mesh.dp_replicate == 1:
        return (scatter,)
    return (scatter, Collective("all_reduce", "dp_replicate", "backward", nbytes // mesh.dp_shard))


def _times(collective: Collective, phase: str, count: int) -> Collective:
    return Collective(collective.kind, collective.axis, phase, collective.nbytes, count)
