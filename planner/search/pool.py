"""What candidates share: the graph of a microbatch size, the space of a tensor-parallel degree, the placement under given weights. Each is
built when first needed and kept for the length of one search."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.ir.family import GraphFamily
from planner.ir.graph import Graph
from planner.ir.problem import Choice, Node, Problem, Solution
from planner.prune.exits import split
from planner.prune.repeat import fold
from planner.search import ilp
from planner.search.candidates import Candidate
from planner.search.data_parallel import reduces_per_step
from planner.search.evaluate import Evaluation, Placed, Rejected, Setting, evaluate, in_flight
from planner.search.ideal import Ideal, ideal
from planner.search.price import Pricer, StageMemory, kernels, memory_kinds, optimizer_step_s
from planner.search.space import Space, Weights, build
from planner.search.units import place

_SHARES = (1.0, 0.85)
"""Parts of the memory that are offered to the placement in turn: stages are never all equally full, and temporaries depend on placement."""


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
        self.units = cache(self._units)
        self.solved = cache(self._solved)

    def _graph(self, microbatch_size: int) -> Graph:
        return split(fold(self.family.at(microbatch_size)))

    def _space(self, microbatch_size: int, tp: int) -> Space:
        return build(self.pricer(microbatch_size, tp), grad_bytes=self.setting.precision.reduce_bytes)

    def _pricer(self, microbatch_size: int, tp: int) -> Pricer:
        return Pricer(self.graph(microbatch_size), self.setting.cluster, tp, self.work(microbatch_size))

    def _ideal(self, microbatch_size: int, tp: int) -> Ideal:
        return ideal(self.pricer(microbatch_size, tp))

    def _placed(self, microbatch_size: int, tp: int, weights: Weights) -> tuple[Solution, Placed] | None:
        """The fastest placement without a memory limit."""
        space = self.space(microbatch_size, tp)
        solution = _solve(space, space.problem(weights))
        return (solution, self.units(microbatch_size, tp, solution.picks)) if solution else None

    def _units(self, microbatch_size: int, tp: int, picks: tuple[int, ...]) -> Placed:
        space = self.space(microbatch_size, tp)
        chosen = ((d, d.ways[pick]) for d, pick in zip(space.decisions, picks, strict=True))
        divided = any(way.strategy.divided and d.op is not None and d.op.flop > 0 for d, way in chosen)
        return Placed(picks, place(space, picks), divided)

    def _fastest(self, candidate: Candidate) -> tuple[Solution, Placed] | None:
        timed = replace(self.weights(candidate), in_flight=0.0, state_bytes=0.0)
        return self.placed(candidate.microbatch_size, candidate.mesh.tp, timed)

    def first_bound_s(self, candidate: Candidate) -> float:
        """Bound 1 of `best_first`, with the optimizer's least time."""
        least = self.ideal(candidate.microbatch_size, candidate.mesh.tp)
        seconds = least.seconds + (least.again_s if candidate.recompute == "full" else 0.0)
        return _pipelined(seconds, candidate) + self._least_optimizer_s(candidate)

    def _least_optimizer_s(self, candidate: Candidate) -> float:
        trainable = self.ideal(candidate.microbatch_size, candidate.mesh.tp).trainable_numel / candidate.mesh.pp
        return optimizer_step_s(int(trainable), candidate, self.setting.cluster, self.setting.precision)

    def second_bound_s(self, candidate: Candidate) -> float:
        """Bound 2 of `best_first`, with the optimizer's least time; the first one where no placement exists."""
        free = Weights(0.0, 0.0, candidate.recompute == "full", 0.0, 0.0)
        placed = self.placed(candidate.microbatch_size, candidate.mesh.tp, free)
        return (
            self.first_bound_s(candidate) if placed is None else _pipelined(placed[0].bound_s, candidate) + self._least_optimizer_s(candidate)
        )

    def placement_bound_s(self, candidate: Candidate) -> float:
        """Bound 2 with everything that happens once a step in the LP."""
        placed = self._fastest(candidate)
        return self.first_bound_s(candidate) if placed is None else _pipelined(placed[0].bound_s, candidate)

    def third_bound_s(self, candidate: Candidate) -> float | None:
        """Bound 3 of `best_first`: the LP with the memory of all stages together as a limit; None if that has no solution."""
        solution = self._limited(candidate, 1.0)
        return None if solution is None else _pipelined(solution.bound_s, candidate)

    def may_fit(self, candidate: Candidate) -> bool:
        """False if even perfectly divided, the parameters and activations do not find room in the stages."""
        room = self._room(candidate)
        if room <= 0 or self.least_bytes(candidate) > self.setting.limit_bytes:
            return False
        per_element = self.weights(candidate).state_bytes
        for block in self.ideal(candidate.microbatch_size, candidate.mesh.tp).blocks:
            state, kept = block.numel * per_element, block.entry_bytes if candidate.recompute == "full" else block.saved_bytes
            if state + kept and sum(int(room / (state + flying * kept)) for flying in in_flight(candidate)) < block.count:
                return False
        return True

    def least_bytes(self, candidate: Candidate) -> float:
        """A lower bound on the memory of the fullest rank."""
        least, pp = self.ideal(candidate.microbatch_size, candidate.mesh.tp), candidate.mesh.pp
        saved = least.entry_bytes if candidate.recompute == "full" else least.saved_bytes
        stage = StageMemory(int(least.numel / pp), int(least.trainable_numel / pp), 0, saved / pp, 0.0, 0)
        return memory_kinds(stage, candidate, self.setting.cluster, self.setting.precision).total

    def unlimited(self, candidate: Candidate, *, incumbent_s: float | None) -> Evaluation | Rejected:
        """The candidate with its fastest placement."""
        placed = self._fastest(candidate)
        return Rejected.MEMORY if placed is None else evaluate(placed[1], candidate, self.setting, incumbent_s=incumbent_s)

    def limited(self, candidate: Candidate, *, incumbent_s: float | None) -> Evaluation | Rejected:
        """The candidate placed under the memory limit, for its stages together; the stages are then cut to fit each."""
        for share in _SHARES:
            solution = self._limited(candidate, share)
            if solution is None:
                break
            units = self.units(candidate.microbatch_size, candidate.mesh.tp, solution.picks)
            found = evaluate(units, candidate, self.setting, incumbent_s=incumbent_s)
            if found is not Rejected.MEMORY:
                return found
        return Rejected.MEMORY

    def smallest(self, candidate: Candidate) -> Evaluation | None:
        """The candidate placed for the least memory, whatever its time, even where it does not fit."""
        space = self.space(candidate.microbatch_size, candidate.mesh.tp)
        weighed = space.problem(self.weights(candidate))
        swapped = tuple(Node(n.name, tuple(Choice(c.ports, c.memory_bytes * 2.0**-40) for c in n.choices)) for n in weighed.nodes)
        solution = _solve(space, Problem(swapped, weighed.links))
        if solution is None:
            return None
        roomy = replace(self.setting, limit_bytes=2.0**62)
        found = evaluate(self.units(candidate.microbatch_size, candidate.mesh.tp, solution.picks), candidate, roomy, incumbent_s=None)
        return None if isinstance(found, Rejected) else found

    def _limited(self, candidate: Candidate, share: float) -> Solution | None:
        if candidate.mesh.tp == 1:
            return None
        limit = share * self._room(candidate) * candidate.mesh.pp
        return self.solved(candidate.microbatch_size, candidate.mesh.tp, self.weights(candidate), limit)

    def _solved(self, microbatch_size: int, tp: int, weights: Weights, limit: float) -> Solution | None:
        space = self.space(microbatch_size, tp)
        return _solve(space, space.problem(weights, memory_limit=limit))

    def _room(self, candidate: Candidate) -> float:
        """Memory of a rank that is left for parameters, their states and activations."""
        nothing = StageMemory(0, 0, 0, 0.0, 0.0, self.setting.buffer_bytes)
        return self.setting.limit_bytes - memory_kinds(nothing, candidate, self.setting.cluster, self.setting.precision).total

    def weights(self, candidate: Candidate) -> Weights:
        """How this candidate values time and memory. What happens once a step weighs 1 / (p + m - 1) of what every microbatch does, because
        a step is (p + m - 1) / p times a microbatch through all p stages, and the stages do their share of the rest side by side."""
        numel = 1 << 24
        cluster, precision, mesh = self.setting.cluster, self.setting.precision, candidate.mesh
        with_state, without = (memory_kinds(StageMemory(n, n, 0, 0.0, 0.0, 0), candidate, cluster, precision).total for n in (numel, 0))
        rounds = mesh.pp + candidate.microbatches - 1
        return Weights(
            reductions=reduces_per_step(candidate) / rounds if mesh.tp > 1 else 0.0,
            element_s=optimizer_step_s(numel, candidate, cluster, precision) / numel / rounds,
            recompute=candidate.recompute == "full",
            in_flight=min(in_flight(candidate)),
            state_bytes=(with_state - without) / numel,
        )


def _solve(space: Space, problem: Problem) -> Solution | None:
    """The solution with a way for every decision of the space."""
    found = ilp.solve(problem)
    return None if found is None else replace(found, picks=space.shape.expand(found.picks))


def _pipelined(seconds: float, candidate: Candidate) -> float:
    """A bound on the step from one on a microbatch through all stages (see `best_first`)."""
    return seconds * (candidate.mesh.pp + candidate.microbatches - 1) / candidate.mesh.pp
