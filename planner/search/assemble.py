"""The outcome of a search as a Plan: names instead of nodes, what the runtime needs, and why the others lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.ir.batch import InputInfo
from planner.ir.family import GraphFamily, coverage, flop_per_sample
from planner.ir.fingerprint import fingerprint
from planner.ir.graph import Graph, Op
from planner.ir.mesh import AXES, Mesh
from planner.ir.options import Options
from planner.ir.placement import Layout, Placement, R, Replicate, Shard
from planner.ir.plan import (
    Activation,
    Alternative,
    BlockInfo,
    ClusterInfo,
    Constraints,
    Illegal,
    ModelInfo,
    Plan,
    Prediction,
    ScheduleInfo,
    Search,
    Stage,
)
from planner.ir.semantics import semantics
from planner.search.alternatives import alternatives
from planner.search.best_first import Outcome
from planner.search.candidates import Candidate
from planner.search.evaluate import Evaluation
from planner.search.pool import Pool
from planner.search.predict import prediction
from planner.search.setting import reduce_dtype
from planner.search.space import Decision, Way


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best evaluation with the decisions behind it."""

    evaluation: Evaluation
    graph: Graph
    ways: tuple[tuple[Decision, Way], ...]


def assemble(outcome: Outcome, pool: Pool, illegal: Sequence[Illegal], options: Options, *, seconds: Sequence[tuple[str, float]]) -> Plan:
    """The plan file's content; everything but `provenance` depends on the inputs only."""
    best = outcome.solved[0]
    candidate = best.candidate
    space = pool.space(candidate.microbatch_size, candidate.mesh.tp)
    ways = tuple((d, d.ways[pick]) for d, pick in zip(space.decisions, best.picks, strict=True))
    chosen = Chosen(best, space.graph, ways)
    family, cluster = pool.family, pool.setting.cluster
    gap = max(0.0, 1 - outcome.bound_s / best.step_s)
    return Plan(
        model=_model(family, space.graph, candidate, options),
        cluster=ClusterInfo(
            cluster.name, cluster.digest(), cluster.devices, cluster.devices_per_node, cluster.device.memory_bytes, cluster.calibrated
        ),
        mesh=candidate.mesh,
        stages=_stages(best),
        parameters=_parameters(chosen),
        activations=_activations(chosen),
        ties=_ties(family),
        buffers=tuple(sorted(buffer.fqn for buffer in family.low.buffers if not buffer.persistent)),
        rng=_rng(candidate.mesh),
        recompute=tuple((region.glob, candidate.recompute) for region in space.graph.regions),
        offload=(),
        schedule=schedule_info(candidate),
        semantics=semantics(family.low, parts=candidate.microbatches * candidate.mesh.dp),
        constraints=Constraints(tuple(sorted(options.mesh)), int(pool.setting.limit_bytes), options.recompute),
        prediction=_prediction(best, pool),
        search=Search(
            candidates=outcome.counts.candidates,
            illegal=len(illegal),
            bounded_away=outcome.counts.bounded_away,
            out_of_memory=outcome.counts.out_of_memory,
            solved=outcome.counts.solved,
            variables=space.problem(pool.weights(candidate)).variables,
            bound_s=min(outcome.bound_s, best.step_s),
            gap=gap,
            ended_by=outcome.ended_by,
        ),
        illegal=tuple(illegal),
        alternatives=tuple(_alternative(other, why) for other, why in alternatives(outcome)),
        provenance=tuple((name, f"{value:.3f}") for name, value in seconds),
    )


def schedule_info(candidate: Candidate) -> ScheduleInfo:
    """The plan's schedule entry of a candidate."""
    return ScheduleInfo(
        candidate.schedule,
        candidate.microbatches,
        candidate.microbatch_size,
        1,
        candidate.zero,
        candidate.mesh.dp * candidate.microbatch_size * candidate.microbatches,
    )


def _rng(mesh: Mesh) -> str:
    """Along which axes ranks draw different random numbers: all but tp as a whole, tp by shard."""
    apart = ", ".join(axis for axis in AXES if axis != "tp" and mesh.degree(axis) > 1)
    return "; ".join(filter(None, (apart and f"own draws along {apart}", "by shard along tp" if mesh.tp > 1 else ""))) or "one seed"


def _model(family: GraphFamily, graph: Graph, candidate: Candidate, options: Options) -> ModelInfo:
    batch = candidate.microbatch_size
    return ModelInfo(
        name=family.name,
        fingerprint=fingerprint(family.rows),
        parameters=sum(_numel(row.shape) for row in family.rows if row.tie == row.fqn),
        inputs=tuple(_resized(info, batch) for info in family.inputs),
        blocks=tuple(BlockInfo(region.glob, region.copies) for region in graph.regions),
        dtype=family.dtype,
        compute_dtype=family.compute_dtype,
        reduce_dtype=reduce_dtype(family, options),
        tokens_per_sample=family.tokens_per_sample,
        flop_per_sample=flop_per_sample(graph),
        coverage=coverage(graph),
        unmodelled=tuple(target for target, _ in graph.unmodelled),
    )


def _resized(info: InputInfo, batch: int) -> InputInfo:
    """The shape of a microbatch; every input has the batch as its first dim."""
    return replace(info, shape=(info.shape[0] * batch, *info.shape[1:]) if info.shape else ())


def _numel(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _stages(best: Evaluation) -> tuple[Stage, ...]:
    parts = [tuple(unit.begin for unit in cost.units if unit.begin) for cost in best.stages]
    return tuple(Stage(part[0] if index else "", part) for index, part in enumerate(parts))


def _parameters(chosen: Chosen) -> tuple[tuple[str, tuple[Placement, ...]], ...]:
    mesh, zero = chosen.evaluation.candidate.mesh, chosen.evaluation.candidate.zero
    shard = Shard(0) if zero and mesh.shards > 1 else Replicate()
    found = {}
    for decision, way in chosen.ways:
        if decision.parameter is not None:
            for fqn in decision.parameter.fqns:
                found[chosen.graph.glob(fqn)] = (Replicate(), shard, way.strategy.outputs[0].value)
    return tuple(sorted(found.items()))


def _activations(chosen: Chosen) -> tuple[tuple[str, Activation], ...]:
    """Borders that change a placement, those at stage cuts that are not R/R, and a last copy's own where the other copies' is listed."""
    cut = {name for cost in chosen.evaluation.stages[1:] for name in cost.units[0].crossings}
    borders = [(decision.op, way) for decision, way in chosen.ways if decision.op is not None and decision.op.border]
    changed = {op.outputs[0] for op, way in borders if way.strategy.inputs != way.strategy.outputs}
    found = {}
    for op, way in borders:
        before, after = way.strategy.inputs[0], way.strategy.outputs[0]
        if before != after or (op.outputs[0] in cut and after != R) or op.outputs[0].removesuffix("@exit") in changed:
            found[_border_name(chosen.graph, op)] = _activation(before, after)
    found |= _at_cuts(chosen)
    return tuple(sorted(found.items()))


def _at_cuts(chosen: Chosen) -> dict[str, Activation]:
    """The layouts of what crosses cuts behind a module that only hands on what a module inside it made: under the outer one's name, which is
    where a stage ends."""
    layouts = {decision.op.outputs[0]: way.strategy.outputs[0] for decision, way in chosen.ways if decision.op and decision.op.border}
    found = {}
    for before, after in pairwise(chosen.evaluation.stages):
        last = before.units[-1].begin
        home = next((region.copies[0] for region in chosen.graph.regions if last in region.copies), last)
        for name in after.units[0].crossings:
            layout = layouts.get(name, R)
            if layout != R and chosen.graph.producer[name].module.startswith(f"{home}."):
                found[f"{last}:output"] = _activation(layout, layout)
    return found


def _activation(before: Layout, after: Layout) -> Activation:
    return Activation(value_from=before.value, value=after.value, grad_from=after.grad, grad=before.grad)


def _border_name(graph: Graph, op: Op) -> str:
    """A border's name in the plan, with a glob where it stands for one in every copy of a block."""
    fqn, _, rest = op.border.partition(":")
    return f"{graph.glob(fqn) if op.name in graph.region_of else fqn}:{rest}"


def _ties(family: GraphFamily) -> tuple[tuple[str, ...], ...]:
    groups: dict[str, list[str]] = {}
    for row in family.rows:
        groups.setdefault(row.tie, []).append(row.fqn)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _prediction(best: Evaluation, pool: Pool) -> Prediction:
    family, candidate = pool.family, best.candidate
    samples = candidate.global_batch
    flop, tokens = flop_per_sample(family.low) * samples, family.tokens_per_sample * samples
    return prediction(best, pool.setting, flop=flop, samples=samples, tokens=tokens, compute_dtype=family.compute_dtype)


def _alternative(other: Evaluation, why: str) -> Alternative:
    candidate = other.candidate
    return Alternative(candidate.mesh, schedule_info(candidate), candidate.recompute, other.step_s, other.peak_bytes, why)
