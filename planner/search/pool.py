"""What candidates share: the graph of a microbatch size, the space of a tensor-parallel degree, the placement under given weights. Each is
built when first needed and kept for the length of one search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from planner.ir.family import GraphFamily
from planner.ir.graph import Graph
from planner.ir.problem import Choice, Node, Problem, Solution
from planner.prune.repeat import fold
from planner.search import ilp
from planner.search.candidates import Candidate
from planner.search.evaluate import Evaluation, Placed, Setting, evaluate, in_flight
from planner.search.footprint import stage_memory
from planner.search.price import Pricer, StageMemory, memory_kinds, optimizer_step_s
from planner.search.space import Space, Weights, build, saved_makers
from planner.search.units import place

_SHARES = (1.0, 0.93, 0.86, 0.8, 0.7)
"""Parts of the memory that are offered to the placement in turn: stages are never all equally full, and temporaries depend on placement."""


@dataclass(frozen=True, slots=True)
class Ideal:
    """Every op divided perfectly over tp, free of communication: less than any placement needs. Seconds per microbatch, seconds of one more
    forward of the repeated blocks, elements of parameters, saved bytes per microbatch without and with full recompute."""

    seconds: float
    again_s: float
    numel: float
    trainable_numel: float
    saved_bytes: float
    entry_bytes: float


class Pool:
    """The shared parts of one search over one model and cluster."""

    def __init__(self, family: GraphFamily, setting: Setting) -> None:
        self.family = family
        self.setting = setting
        self.graph = cache(self._graph)
        self.space = cache(self._space)
        self.ideal = cache(self._ideal)
        self.placed = cache(self._placed)

    def _graph(self, microbatch_size: int) -> Graph:
        return fold(self.family.at(microbatch_size))

    def _space(self, microbatch_size: int, tp: int) -> Space:
        return build(self.graph(microbatch_size), self.setting.cluster, degree=tp, grad_bytes=self.setting.precision.reduce_bytes)

    def _ideal(self, microbatch_size: int, tp: int) -> Ideal:
        graph = self.graph(microbatch_size)
        pricer = Pricer(graph, self.setting.cluster, tp)
        prices = [(graph.multiplicity(op), op.name in graph.region_of, pricer.ideal(op)) for op in graph.ops]
        parameters = [(p.trainable, graph.copies_of(p) * p.numel / tp) for p in graph.parameters]
        saved = saved_makers(graph)
        kept = [(op.name in graph.region_of, graph.multiplicity(op) * graph.by_name[name].nbytes / tp)
                for op in graph.ops if not op.border for name in op.outputs if name in saved]  # fmt: skip
        entries = sum(region.count * graph.by_name[read].nbytes / tp for region in graph.regions for read, _ in region.carried)
        return Ideal(
            seconds=sum(copies * (forward + backward) for copies, _, (forward, backward) in prices),
            again_s=sum(copies * forward for copies, inside, (forward, _) in prices if inside),
            numel=sum(numel for _, numel in parameters),
            trainable_numel=sum(numel for trainable, numel in parameters if trainable),
            saved_bytes=sum(nbytes for _, nbytes in kept),
            entry_bytes=entries + sum(nbytes for inside, nbytes in kept if not inside),
        )

    def _placed(self, microbatch_size: int, tp: int, recompute: bool, reductions: float) -> tuple[Solution, Placed] | None:
        """The fastest placement without a memory limit; reductions of partial gradients per microbatch."""
        space = self.space(microbatch_size, tp)
        solution = ilp.solve(space.problem(Weights(reductions, recompute, 1.0, 0.0)))
        return (solution, _units(space, solution)) if solution else None

    def first_bound_s(self, candidate: Candidate) -> float:
        """Bound 1 of `best_first`, with the optimizer's least time."""
        ideal = self.ideal(candidate.microbatch_size, candidate.mesh.tp)
        seconds = ideal.seconds + (ideal.again_s if candidate.recompute == "full" else 0.0)
        return _pipelined(seconds, candidate) + self._optimizer_s(candidate, ideal)

    def second_bound_s(self, candidate: Candidate) -> float:
        """Bound 2 of `best_first`; the first one where no placement exists."""
        ideal = self.ideal(candidate.microbatch_size, candidate.mesh.tp)
        placed = self.placed(*_key(candidate))
        if placed is None:
            return self.first_bound_s(candidate)
        return _pipelined(placed[0].bound_s, candidate) + self._optimizer_s(candidate, ideal)

    def may_fit(self, candidate: Candidate) -> bool:
        """False if even the least of everything, spread evenly over the stages, exceeds the memory."""
        return self.least_bytes(candidate) <= self.setting.limit_bytes

    def least_bytes(self, candidate: Candidate) -> float:
        """A lower bound on the memory of the fullest rank."""
        ideal, pp = self.ideal(candidate.microbatch_size, candidate.mesh.tp), candidate.mesh.pp
        saved = ideal.entry_bytes if candidate.recompute == "full" else ideal.saved_bytes
        stage = StageMemory(int(ideal.numel / pp), int(ideal.trainable_numel / pp), 0, saved / pp, 0.0, 0)
        return memory_kinds(stage, candidate, self.setting.cluster, self.setting.precision).total

    def evaluate(self, candidate: Candidate) -> Evaluation | None:
        """The best plan of one candidate within the memory limit; None if it does not fit."""
        placed = self.placed(*_key(candidate))
        if placed is None:
            return None
        return evaluate(placed[1], candidate, self.setting) or self._within_memory(candidate)

    def smallest(self, candidate: Candidate) -> Evaluation | None:
        """The candidate placed for the least memory, whatever its time, even where it does not fit."""
        space = self.space(candidate.microbatch_size, candidate.mesh.tp)
        weighed = space.problem(self.weights(candidate))
        swapped = tuple(Node(n.name, tuple(Choice(c.ports, c.memory_bytes * 2.0**-40) for c in n.choices)) for n in weighed.nodes)
        solution = ilp.solve(Problem(swapped, weighed.links))
        roomy = replace(self.setting, limit_bytes=2.0**62)
        return evaluate(_units(space, solution), candidate, roomy) if solution else None

    def _within_memory(self, candidate: Candidate) -> Evaluation | None:
        """Placement under the memory limit, for the stages together; a pipeline's stages are then cut to fit each."""
        if candidate.mesh.tp == 1:
            return None
        space, setting = self.space(candidate.microbatch_size, candidate.mesh.tp), self.setting
        fixed = memory_kinds(stage_memory((), candidate, flying=0, buffer_bytes=0), candidate, setting.cluster, setting.precision).total
        room = setting.limit_bytes - fixed - setting.buffer_bytes
        for share in _SHARES:
            solution = ilp.solve(space.problem(self.weights(candidate), memory_limit=share * room * candidate.mesh.pp))
            if solution is None:
                return None
            found = evaluate(_units(space, solution), candidate, setting)
            if found is not None:
                return found
        return None

    def weights(self, candidate: Candidate) -> Weights:
        """How this candidate values time and memory."""
        numel = 1 << 20
        flying = in_flight(candidate)
        with_state, without = (
            memory_kinds(StageMemory(n, n, 0, 0.0, 0.0, 0), candidate, self.setting.cluster, self.setting.precision).total for n in (numel, 0)
        )
        _, _, recompute, reductions = _key(candidate)
        return Weights(reductions, recompute, sum(flying) / len(flying), (with_state - without) / numel)

    def _optimizer_s(self, candidate: Candidate, ideal: Ideal) -> float:
        pp = candidate.mesh.pp
        stage = StageMemory(int(ideal.numel / pp), int(ideal.trainable_numel / pp), 0, 0.0, 0.0, 0)
        return optimizer_step_s(stage, candidate, self.setting.cluster, self.setting.precision)


def _units(space: Space, solution: Solution) -> Placed:
    return Placed(solution.picks, place(space, solution.picks))


def _pipelined(seconds: float, candidate: Candidate) -> float:
    return seconds * (candidate.mesh.pp + candidate.microbatches - 1) / candidate.mesh.pp


def _key(candidate: Candidate) -> tuple[int, int, bool, float]:
    """What decides the fastest placement: microbatch, degree, recompute, and how often a microbatch pays for partial gradients."""
    every = candidate.zero >= 2 and candidate.mesh.pp == 1
    reductions = 1.0 if every else 1.0 / candidate.microbatches
    return candidate.microbatch_size, candidate.mesh.tp, candidate.recompute == "full", reductions if candidate.mesh.tp > 1 else 0.0
