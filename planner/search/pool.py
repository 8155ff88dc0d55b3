"""What candidates share: the graph of a microbatch size, the space of a tensor-parallel degree, the placement under given weights. Each is
built when first needed and kept for the length of one search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from planner.ir.family import GraphFamily
from planner.ir.graph import Graph, Op, Region
from planner.ir.problem import Choice, Node, Problem, Solution
from planner.prune.repeat import fold
from planner.search import ilp
from planner.search.candidates import Candidate
from planner.search.evaluate import Evaluation, Placed, Rejected, Setting, evaluate, in_flight
from planner.search.price import Pricer, StageMemory, kernels, memory_kinds, optimizer_step_s
from planner.search.space import Space, Weights, build, saved_makers
from planner.search.units import place

_SHARES = (1.0, 0.85)
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
    blocks: tuple[IdealBlock, ...]


@dataclass(frozen=True, slots=True)
class IdealBlock:
    """One of `count` copies of a block, perfectly divided."""

    count: int
    numel: float
    saved_bytes: float
    entry_bytes: float


class Pool:
    """The shared parts of one search over one model and cluster."""

    def __init__(self, family: GraphFamily, setting: Setting) -> None:
        self.family = family
        self.setting = setting
        self.graph = cache(self._graph)
        self.work = cache(lambda microbatch_size: kernels(self.graph(microbatch_size)))
        self.pricer = cache(self._pricer)
        self.space = cache(self._space)
        self.ideal = cache(self._ideal)
        self.placed = cache(self._placed)
        self.solved = cache(self._solved)

    def _graph(self, microbatch_size: int) -> Graph:
        return fold(self.family.at(microbatch_size))

    def _space(self, microbatch_size: int, tp: int) -> Space:
        return build(self.pricer(microbatch_size, tp), grad_bytes=self.setting.precision.reduce_bytes)

    def _pricer(self, microbatch_size: int, tp: int) -> Pricer:
        return Pricer(self.graph(microbatch_size), self.setting.cluster, tp, self.work(microbatch_size))

    def _ideal(self, microbatch_size: int, tp: int) -> Ideal:
        graph = self.graph(microbatch_size)
        pricer = self.pricer(microbatch_size, tp)
        prices = [(graph.multiplicity(op), op.name in graph.region_of, pricer.ideal(op)) for op in graph.ops]
        saved = saved_makers(graph)
        parameters = [(p.trainable, graph.copies_of(p) * p.numel / tp) for p in graph.parameters]
        kept = [(op, graph.by_name[name].nbytes / tp) for op in graph.ops if not op.border for name in op.outputs if name in saved]
        blocks = tuple(self._ideal_block(graph, region, kept, tp) for region in graph.regions)
        return Ideal(
            seconds=sum(copies * (forward + backward) for copies, _, (forward, backward) in prices),
            again_s=sum(copies * forward for copies, inside, (forward, _) in prices if inside),
            numel=sum(numel for _, numel in parameters),
            trainable_numel=sum(numel for trainable, numel in parameters if trainable),
            saved_bytes=sum(graph.multiplicity(op) * nbytes for op, nbytes in kept),
            entry_bytes=sum(block.count * block.entry_bytes for block in blocks)
            + sum(nbytes for op, nbytes in kept if op.name not in graph.region_of),
            blocks=blocks,
        )

    def _ideal_block(self, graph: Graph, region: Region, kept: Sequence[tuple[Op, float]], tp: int) -> IdealBlock:
        inside = frozenset(region.ops)
        numel = sum(p.numel / tp for p in graph.parameters if p.trainable and p.fqn.startswith(region.copies[0] + "."))
        saved = sum(nbytes for op, nbytes in kept if op.name in inside)
        entry = sum(graph.by_name[read].nbytes / tp for read, _ in region.carried)
        return IdealBlock(region.count, numel, saved, entry)

    def _placed(self, microbatch_size: int, tp: int, recompute: bool, reductions: int) -> tuple[Solution, Placed] | None:
        """The fastest placement without a memory limit."""
        space = self.space(microbatch_size, tp)
        solution = ilp.solve(space.problem(Weights(reductions, recompute, 1.0, 0.0)))
        return (solution, _units(space, solution)) if solution else None

    def first_bound_s(self, candidate: Candidate) -> float:
        """Bound 1 of `best_first`, with the optimizer's least time."""
        ideal = self.ideal(candidate.microbatch_size, candidate.mesh.tp)
        seconds = ideal.seconds + (ideal.again_s if candidate.recompute == "full" else 0.0)
        return self._step_bound_s(seconds, candidate)

    def second_bound_s(self, candidate: Candidate) -> float:
        """Bound 2 of `best_first`; the first one where no placement exists."""
        placed = self.placed(*_key(candidate))
        return self.first_bound_s(candidate) if placed is None else self._step_bound_s(placed[0].bound_s, candidate)

    def third_bound_s(self, candidate: Candidate) -> float | None:
        """Bound 3 of `best_first`: the LP with the memory of all stages together as a limit; None if that has no solution."""
        solution = self._limited(candidate, 1.0)
        return None if solution is None else self._step_bound_s(solution.bound_s, candidate)

    def may_fit(self, candidate: Candidate) -> bool:
        """False if even perfectly divided, the parameters and activations do not find room in the stages."""
        room = self._room(candidate)
        if room <= 0 or self.least_bytes(candidate) > self.setting.limit_bytes:
            return False
        ideal = self.ideal(candidate.microbatch_size, candidate.mesh.tp)
        per_element = self.weights(candidate).state_bytes
        for block in ideal.blocks:
            state, kept = block.numel * per_element, block.entry_bytes if candidate.recompute == "full" else block.saved_bytes
            if sum(int(room / (state + flying * kept)) for flying in in_flight(candidate) if state + kept) < block.count and state + kept:
                return False
        return True

    def least_bytes(self, candidate: Candidate) -> float:
        """A lower bound on the memory of the fullest rank."""
        ideal, pp = self.ideal(candidate.microbatch_size, candidate.mesh.tp), candidate.mesh.pp
        saved = ideal.entry_bytes if candidate.recompute == "full" else ideal.saved_bytes
        stage = StageMemory(int(ideal.numel / pp), int(ideal.trainable_numel / pp), 0, saved / pp, 0.0, 0)
        return memory_kinds(stage, candidate, self.setting.cluster, self.setting.precision).total

    def unlimited(self, candidate: Candidate, *, incumbent_s: float | None) -> Evaluation | Rejected:
        """The candidate with its fastest placement."""
        placed = self.placed(*_key(candidate))
        return Rejected.MEMORY if placed is None else evaluate(placed[1], candidate, self.setting, incumbent_s=incumbent_s)

    def limited(self, candidate: Candidate, *, incumbent_s: float | None) -> Evaluation | Rejected:
        """The candidate placed under the memory limit, for its stages together; the stages are then cut to fit each."""
        for share in _SHARES:
            solution = self._limited(candidate, share)
            if solution is None:
                break
            space = self.space(candidate.microbatch_size, candidate.mesh.tp)
            found = evaluate(_units(space, solution), candidate, self.setting, incumbent_s=incumbent_s)
            if found is not Rejected.MEMORY:
                return found
        return Rejected.MEMORY

    def smallest(self, candidate: Candidate) -> Evaluation | None:
        """The candidate placed for the least memory, whatever its time, even where it does not fit."""
        space = self.space(candidate.microbatch_size, candidate.mesh.tp)
        weighed = space.problem(self.weights(candidate))
        swapped = tuple(Node(n.name, tuple(Choice(c.ports, c.memory_bytes * 2.0**-40) for c in n.choices)) for n in weighed.nodes)
        solution = ilp.solve(Problem(swapped, weighed.links))
        if solution is None:
            return None
        roomy = replace(self.setting, limit_bytes=2.0**62)
        found = evaluate(_units(space, solution), candidate, roomy, incumbent_s=None)
        return None if isinstance(found, Rejected) else found

    def _limited(self, candidate: Candidate, share: float) -> Solution | None:
        if candidate.mesh.tp == 1:
            return None
        limit = share * self._room(candidate) * candidate.mesh.pp
        return self.solved(candidate.microbatch_size, candidate.mesh.tp, self.weights(candidate), limit)

    def _solved(self, microbatch_size: int, tp: int, weights: Weights, limit: float) -> Solution | None:
        return ilp.solve(self.space(microbatch_size, tp).problem(weights, memory_limit=limit))

    def _room(self, candidate: Candidate) -> float:
        """Memory of a rank that is left for parameters, their states and activations."""
        nothing = StageMemory(0, 0, 0, 0.0, 0.0, self.setting.buffer_bytes)
        return self.setting.limit_bytes - memory_kinds(nothing, candidate, self.setting.cluster, self.setting.precision).total

    def weights(self, candidate: Candidate) -> Weights:
        """How this candidate values time and memory."""
        numel = 1 << 20
        flying = in_flight(candidate)
        with_state, without = (
            memory_kinds(StageMemory(n, n, 0, 0.0, 0.0, 0), candidate, self.setting.cluster, self.setting.precision).total for n in (numel, 0)
        )
        _, _, recompute, reductions = _key(candidate)
        return Weights(reductions, recompute, min(flying), (with_state - without) / numel)

    def _step_bound_s(self, seconds: float, candidate: Candidate) -> float:
        """A bound on the step from one on a microbatch through all stages."""
        mesh = candidate.mesh
        trainable = self.ideal(candidate.microbatch_size, mesh.tp).trainable_numel / mesh.pp
        optimizer = optimizer_step_s(int(trainable), candidate, self.setting.cluster, self.setting.precision)
        return seconds * (mesh.pp + candidate.microbatches - 1) / mesh.pp + optimizer


def _units(space: Space, solution: Solution) -> Placed:
    chosen = ((d, d.ways[pick]) for d, pick in zip(space.decisions, solution.picks, strict=True))
    divided = any(way.strategy.divided and d.op is not None and d.op.flop > 0 for d, way in chosen)
    return Placed(solution.picks, place(space, solution.picks), divided)


def _key(candidate: Candidate) -> tuple[int, int, bool, int]:
    """What decides the fastest placement: microbatch, degree, recompute, and whether every microbatch pays for partial gradients. Where they
    are reduced once a step, the placement takes them as free; the evaluation does not."""
    every = candidate.mesh.tp > 1 and candidate.zero >= 2
    return candidate.microbatch_size, candidate.mesh.tp, candidate.recompute == "full", int(every)
