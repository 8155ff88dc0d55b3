"""What data parallelism moves for one stage, as FSDP2 does it: one unit per block copy and one for the rest.

    gather   all_gather over the shards of the padded shards in the compute dtype     zero 1, 2: once a step; 3: every microbatch, blocks in
                                                                                    forward and again in backward, the rest whenever it
                                                                                    is not there (see `rest_gathers`)
    reduce   reduce_scatter over the shards in the reduce dtype; zero 0:            zero 0, 1: once a step; 2, 3: every microbatch
             all_reduce over all data axes
    HSDP     all_reduce of the reduced shard over dp_replicate                      once a step
    R/P      all_reduce over tp of each parameter whose gradient is partial         as often as reduce; all together in one if dp is 1

The shards are the ranks of dp_shard x cp x ep. A parameter's shard along dim 0 is padded to equal sizes:
bytes = shards * ceil(dim0 / shards) * rest * itemsize. The gather of one unit runs beside the compute of the unit before it, the reduction
beside the backward of the next; the first gather and the last reduction of a pass have nothing to hide behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from costmodels.hardware import Cluster
from planner.ir.mesh import DATA_AXES, SHARD_AXES, Mesh
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
    """Gathers and reductions of one pass over a stage, one entry per unit with the rest last, and how often a step makes that pass."""

    gathers: tuple[Collective, ...]
    reductions: tuple[Collective, ...]
    replications: tuple[Collective, ...]
    block_gathers: tuple[int, int]
    rest_gathers: tuple[int, int]
    reduces: int
    microbatches: int
    has_rest: bool

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All of a step."""
        blocks, rest = (self.gathers[:-1], self.gathers[-1:]) if self.has_rest else (self.gathers, ())
        found = []
        for gathers, counts in ((blocks, self.block_gathers), (rest, self.rest_gathers)):
            for phase, count in zip(("forward", "backward"), counts, strict=True):
                found += [_times(c, phase, count) for c in gathers]
        found += [_times(c, "backward", self.reduces) for c in self.reductions]
        found += [_times(c, "backward", 1) for c in self.replications]
        return tuple(c for c in found if c.count)

    def exposed(self, cluster: Cluster, mesh: Mesh, *, forward_s: float, backward_s: float) -> Exposed:
        """Seconds of gathers and reductions that the given compute of one microbatch does not hide."""
        gather, reduce, replicate = (
            [traffic_s((c,), cluster, mesh) for c in kind] for kind in (self.gathers, self.reductions, self.replications)
        )
        again = gather[: len(gather) - self.has_rest] if self.block_gathers[1] else []
        once = exposed_s(replicate, backward_s)
        forward = exposed_s(gather, forward_s)
        if self.block_gathers[0] < self.microbatches:
            once, forward = once + forward, 0.0
        every = self.reduces == self.microbatches > 1
        backward = exposed_s([*again, *(reduce if every else ())], backward_s)
        if not every:
            once += exposed_s(reduce, backward_s)
        return Exposed((forward, backward), once)


def stage_traffic(part: Sequence[PlacedUnit], stage: int, candidate: Candidate, precision: Precision) -> DataParallel:
    """What one rank of stage number `stage`, made of `part`, moves along the data axes."""
    mesh, count, zero = candidate.mesh, candidate.microbatches, candidate.zero
    groups = [group for group in fsdp_units(part) if group]
    gathers = tuple(_gather(group, mesh, precision) for group in groups) if zero else ()
    reductions = tuple(_reduction(group, mesh, zero, precision) for group in groups) if mesh.data > 1 else ()
    hybrid = zero > 0 and mesh.dp_replicate > 1
    return DataParallel(
        gathers,
        reductions,
        tuple(replace(c, kind="all_reduce", axis="dp_replicate", nbytes=c.nbytes // mesh.shards) for c in reductions) if hybrid else (),
        block_gathers=(count, count) if zero == 3 else (min(1, zero), 0),
        rest_gathers=rest_gathers(stage, candidate) if zero == 3 else (min(1, zero), 0),
        reduces=reduces_per_step(candidate) if reductions else 0,
        microbatches=count,
        has_rest=bool(fsdp_units(part)[-1]),
    )


def rest_gathers(stage: int, candidate: Candidate) -> tuple[int, int]:
    """How often ZeRO 3 gathers what is in no block, forward and backward: it stays from a forward until the next backward has used it.

    A stage that runs w forwards ahead, then m - w pairs, then w backwards gathers for the first forward of each run and for each backward
    that follows another one.
    """
    count = candidate.microbatches
    ahead = count if candidate.schedule == "gpipe" else min(candidate.mesh.pp - stage - 1, count)
    if ahead == count:
        return 1, count - 1
    return count - ahead, ahead


def reduces_per_step(candidate: Candidate) -> int:
    """How often a step reduces gradients."""
    return candidate.microbatches if candidate.zero >= 2 else 1


def partial_gradients(part: Sequence[PlacedUnit], candidate: Candidate, precision: Precision) -> tuple[Collective, ...]:
    """Gradients that are partial over tp: each by itself where an engine reduces, else all together before the optimizer. Where that
    happens after every backward they are still in the compute dtype."""
    placed = {(unit.begin if unit.block else "", p.parameter.fqn): p for unit in part for p in unit.parameters if p.layout.grad.is_partial}
    sizes = [prod(p.parameter.shape) for p in placed.values()]
    if not sizes:
        return ()
    if candidate.mesh.data == 1 and precision.compute_bytes == precision.param_bytes:
        return (Collective("all_reduce", "tp", "step", sum(sizes) * precision.reduce_bytes),)
    often = reduces_per_step(candidate)
    nbytes = precision.compute_bytes if often == candidate.microbatches else precision.reduce_bytes
    return tuple(Collective("all_reduce", "tp", "backward", numel * nbytes, often) for numel in sizes)


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
    numel = sum(padded_numel(p.local_shape(mesh.tp), mesh.shards) for p in group)
    return Collective("all_gather", mesh.joined(SHARD_AXES), "forward", numel * precision.compute_bytes)


def _reduction(group: Sequence[PlacedParameter], mesh: Mesh, zero: int, precision: Precision) -> Collective:
    trained = [p.local_shape(mesh.tp) for p in group if p.parameter.trainable]
    if not zero:
        return Collective("all_reduce", mesh.joined(DATA_AXES), "backward", sum(map(prod, trained)) * precision.reduce_bytes)
    nbytes = sum(padded_numel(shape, mesh.shards) for shape in trained) * precision.reduce_bytes
    return Collective("reduce_scatter", mesh.joined(SHARD_AXES), "backward", nbytes)


def _times(collective: Collective, phase: str, count: int) -> Collective:
    return Collective(collective.kind, collective.axis, phase, collective.nbytes, count)
