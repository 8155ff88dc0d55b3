"""A placed model under one candidate: stages, simulated step time, memory per rank.

    step = simulate(schedule, forward_s, backward_s, p2p_s) + once per step: optimizer and what data-parallel reduction does not hide

A stage's forward and backward per microbatch are the sums over its units, with tensor-parallel collectives in line (they are on the critical
path) and the part of parameter gathering and gradient reduction that the stage's own compute cannot hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Protocol

from costmodels.hardware import Cluster
from planner.ir.plan import Breakdown, MemoryKinds
from planner.search import stages
from planner.search.candidates import Candidate
from planner.search.data_parallel import partial_gradients, stage_traffic
from planner.search.footprint import stage_memory
from planner.search.price import Precision, memory_kinds, optimizer_step_s, peer_s, stages_bound_s, traffic_s
from planner.search.units import PlacedUnit


@dataclass(frozen=True, slots=True)
class StageCost:
    """Per microbatch, except `once_s` and `optimizer_s`, which happen once a step."""

    units: tuple[PlacedUnit, ...]
    compute_s: tuple[float, float]
    recompute_s: float
    tp_s: tuple[float, float]
    dp_s: tuple[float, float]
    once_s: float
    optimizer_s: float

    @property
    def forward_s(self) -> float:
        return self.compute_s[0] + self.tp_s[0] + self.dp_s[0]

    @property
    def backward_s(self) -> float:
        return self.compute_s[1] + self.recompute_s + self.tp_s[1] + self.dp_s[1]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A candidate with everything predicted about it; `picks` are the ways chosen in its space."""

    candidate: Candidate
    picks: tuple[int, ...]
    stages: tuple[StageCost, ...]
    memory: tuple[MemoryKinds, ...]
    step_s: float
    breakdown: Breakdown
    bubble_of_total: float

    @property
    def peak_bytes(self) -> int:
        return max(kinds.total for kinds in self.memory)


class Makespan(Protocol):
    """The simulator, as `planner.simulate.makespan.makespan_s`; the driver hands it in."""

    def __call__(
        self, schedule: str, *, microbatches: int, forward_s: Sequence[float], backward_s: Sequence[float], p2p_s: Sequence[float] | float = 0.0
    ) -> float:
        """Seconds of the schedule of that name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all candidates of one search share."""

    cluster: Cluster
    precision: Precision
    buffer_bytes: int
    limit_bytes: float
    makespan_s: Makespan
    tp_is_pinned: bool = False


def in_flight(candidate: Candidate) -> tuple[int, ...]:
    """Microbatches that each stage holds at its peak."""
    stages_, count = candidate.mesh.pp, candidate.microbatches
    return tuple(count if candidate.schedule == "gpipe" else min(stages_ - s, count) for s in range(stages_))


@dataclass(frozen=True, slots=True)
class Placed:
    """A solved space as units in execution order, with the picks it came from; `divided` says whether ranks share any work along tp."""

    picks: tuple[int, ...]
    units: tuple[PlacedUnit, ...]
    divided: bool


class Rejected(Enum):
    """Why a candidate has no evaluation."""

    MEMORY = "no cut fits in memory"
    BOUND = "slower than the incumbent whatever the schedule"
    IDLE = "every rank of a tensor-parallel group does the same work"


def evaluate(placed: Placed, candidate: Candidate, setting: Setting, *, incumbent_s: float | None) -> Evaluation | Rejected:
    """The best cut of the units for `candidate`, priced, unless it cannot beat `incumbent_s`."""
    if not (placed.divided or candidate.mesh.tp == 1 or setting.tp_is_pinned):
        return Rejected.IDLE
    parts = _cut(placed.units, candidate, setting)
    if parts is None:
        return Rejected.MEMORY
    memory = tuple(_memory(part, index, candidate, setting) for index, part in enumerate(parts))
    if max(kinds.total for kinds in memory) > setting.limit_bytes:
        return Rejected.MEMORY
    costs = tuple(_stage_cost(part, index, candidate, setting) for index, part in enumerate(parts))
    least = stages_bound_s([c.forward_s for c in costs], [c.backward_s for c in costs], candidate.microbatches)
    if incumbent_s is not None and least >= incumbent_s:
        return Rejected.BOUND
    return _timed(placed.picks, candidate, costs, memory, setting)


def _cut(units: Sequence[PlacedUnit], candidate: Candidate, setting: Setting) -> tuple[tuple[PlacedUnit, ...], ...] | None:
    flying = in_flight(candidate)
    if len(flying) == 1:
        return (tuple(units),)
    if len(flying) > len(units):
        return None
    pieces: dict[str, stages.Unit] = {}
    fixed = 0.0
    for unit in units:
        if unit.kind not in pieces:
            pieces[unit.kind] = _piece(unit, candidate, setting)
            fixed = max(fixed, _passing_bytes(unit, candidate, setting))
    sent = [peer_s(unit.sent_bytes, candidate.mesh, setting.cluster) for unit in units]
    cuttable = [replace(pieces[unit.kind], begin=unit.begin, sent_s=seconds) for unit, seconds in zip(units, sent, strict=True)]
    fixed += setting.buffer_bytes
    begins = stages.cut(cuttable, in_flight=flying, fixed_bytes=fixed, limit_bytes=setting.limit_bytes)
    if begins is None:
        return None
    ends = (*begins[1:], len(units))
    return tuple(tuple(units[start:end]) for start, end in zip(begins, ends, strict=True))


def _piece(unit: PlacedUnit, candidate: Candidate, setting: Setting) -> stages.Unit:
    again = candidate.recompute == "full" and unit.block
    seconds = unit.forward_s + unit.backward_s + unit.forward_tp_s + unit.backward_tp_s
    seconds += (unit.forward_s + unit.repeated_tp_s) if again else 0.0
    lasting = replace(stage_memory((unit,), candidate, flying=0, buffer_bytes=0), block_numel=0)
    held = memory_kinds(lasting, candidate, setting.cluster, setting.precision)
    flying = unit.entry_bytes if again else unit.saved_bytes
    return stages.Unit(unit.begin, seconds, held.parameters + held.gradients + held.optimizer, flying)


def _passing_bytes(unit: PlacedUnit, candidate: Candidate, setting: Setting) -> float:
    """What a stage needs while it works on this unit, beside what lasts: gathered parameters, gradients on the way, temporaries."""
    whole = stage_memory((unit,), candidate, flying=0, buffer_bytes=0)
    kinds = memory_kinds(whole, candidate, setting.cluster, setting.precision)
    lasting = memory_kinds(replace(whole, block_numel=0), candidate, setting.cluster, setting.precision)
    return kinds.total - lasting.parameters - lasting.gradients - lasting.optimizer


def _stage_cost(part: tuple[PlacedUnit, ...], index: int, candidate: Candidate, setting: Setting) -> StageCost:
    again = [unit for unit in part if candidate.recompute == "full" and unit.block]
    forward, backward = sum(u.forward_s for u in part), sum(u.backward_s for u in part)
    recompute = sum(u.forward_s for u in again)
    tp = (sum(u.forward_tp_s for u in part), sum(u.backward_tp_s for u in part) + sum(u.repeated_tp_s for u in again))
    traffic = stage_traffic(part, index, candidate, setting.precision)
    exposed = traffic.exposed(setting.cluster, candidate.mesh, forward_s=forward + tp[0], backward_s=backward + recompute + tp[1])
    sums_s = traffic_s(partial_gradients(part, candidate, setting.precision), setting.cluster, candidate.mesh)
    trainable = stage_memory(part, candidate, flying=0, buffer_bytes=0).trainable_numel
    optimizer = optimizer_step_s(trainable, candidate, setting.cluster, setting.precision)
    return StageCost(part, (forward, backward), recompute, tp, exposed.per_microbatch_s, exposed.once_s + sums_s, optimizer)


def _memory(part: tuple[PlacedUnit, ...], index: int, candidate: Candidate, setting: Setting) -> MemoryKinds:
    stage = stage_memory(part, candidate, flying=in_flight(candidate)[index], buffer_bytes=setting.buffer_bytes)
    return memory_kinds(stage, candidate, setting.cluster, setting.precision)


def _timed(
    picks: tuple[int, ...], candidate: Candidate, costs: tuple[StageCost, ...], memory: tuple[MemoryKinds, ...], setting: Setting
) -> Evaluation:
    forward, backward = tuple(c.forward_s for c in costs), tuple(c.backward_s for c in costs)
    sent = tuple(peer_s(c.units[0].sent_bytes, candidate.mesh, setting.cluster) for c in costs[1:])
    time = partial(setting.makespan_s, candidate.schedule, microbatches=candidate.microbatches, forward_s=forward, backward_s=backward)
    makespan, free = time(p2p_s=sent), time()
    slowest = max(costs, key=lambda c: c.forward_s + c.backward_s)
    count = candidate.microbatches
    bubble = max(0.0, free - count * (slowest.forward_s + slowest.backward_s))
    once, optimizer = max(c.once_s for c in costs), max(c.optimizer_s for c in costs)
    breakdown = Breakdown(
        compute=count * sum(slowest.compute_s),
        recompute=count * slowest.recompute_s,
        tp_communication=count * sum(slowest.tp_s),
        dp_communication=count * sum(slowest.dp_s) + once,
        pp_communication=makespan - free,
        bubble=bubble,
        optimizer=optimizer,
    )
    step = makespan + once + optimizer
    return Evaluation(candidate, picks, costs, memory, step, breakdown, bubble / step)
