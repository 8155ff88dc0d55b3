"""What the plan file says about a chosen plan: rates, error bar, memory by kind, and the collectives that one step runs.

Collectives are counted as the runtime's recorder sees them, per rank of each stage; they are the same ones that were priced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import prod

from planner.ir.mesh import DATA_AXES
from planner.ir.plan import Prediction
from planner.ir.strategy import Collective
from planner.search.candidates import Candidate
from planner.search.data_parallel import padded_numel, partial_gradients, stage_traffic
from planner.search.evaluate import Evaluation, Setting, StageCost
from planner.search.price import mfu_of

UNCALIBRATED = (0.75, 1.6)
"""Predicted step time times these is the error bar before a profile is fitted. The ten measured configurations of Narayanan et al., SC21,
table 1, took 1.08 to 1.54 times what is predicted for them (tests/search/test_known_answers.py); others may lie on either side."""


def prediction(best: Evaluation, setting: Setting, *, flop: int, samples: int, tokens: int, compute_dtype: str) -> Prediction:
    """All predicted numbers of `best`; `flop` is the model's work per step, without recompute."""
    low, high = UNCALIBRATED
    return Prediction(
        step_time_s=best.step_s,
        step_time_low_s=best.step_s * low,
        step_time_high_s=best.step_s * high,
        samples_per_s=samples / best.step_s,
        tokens_per_s=tokens / best.step_s,
        mfu=mfu_of(flop, best.step_s, setting.cluster, compute_dtype),
        bubble_of_total=best.bubble_of_total,
        breakdown_s=best.breakdown,
        peak_memory_bytes=tuple(kinds.total for kinds in best.memory),
        memory_bytes=best.memory,
        collectives=tuple(stage_collectives(best, index, setting) for index in range(len(best.stages))),
    )


def stage_collectives(best: Evaluation, index: int, setting: Setting) -> tuple[Collective, ...]:
    """What one rank of stage `index` runs in a step, merged and sorted."""
    candidate, cost = best.candidate, best.stages[index]
    found = [
        *_tensor_parallel(cost, candidate, setting),
        *partial_gradients(cost.units, candidate, setting.precision),
        *_reporting(candidate),
        *_messages(best, index),
        *_shared(best, index, setting),
        *stage_traffic(cost.units, index, candidate, setting.precision).collectives,
    ]
    return merged(found)


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Equal ones counted together."""
    counts: Counter[Collective] = Counter()
    for collective in collectives:
        if collective.count:
            counts[replace(collective, count=1)] += collective.count
    return tuple(sorted(replace(collective, count=count) for collective, count in counts.items()))


def _tensor_parallel(cost: StageCost, candidate: Candidate, setting: Setting) -> Iterable[Collective]:
    for unit in cost.units:
        again = unit.repeated if candidate.recompute == "full" and unit.block else ()
        for collective in (*unit.collectives, *(replace(c, phase="backward") for c in again)):
            yield _as_run(replace(collective, count=collective.count * candidate.microbatches), candidate, setting)


def _as_run(collective: Collective, candidate: Candidate, setting: Setting) -> Collective:
    """On gloo DTensor gathers the whole tensor to move a shard to another dim."""
    if collective.kind != "all_to_all" or setting.cluster.backend != "gloo":
        return collective
    return replace(collective, kind="all_gather", nbytes=collective.nbytes * candidate.mesh.tp)


def _reporting(candidate: Candidate) -> Iterable[Collective]:
    """The weights of all microbatches and the global mean loss, 8 bytes each; the loss also travels over the stages."""
    for axis, count in (("pp", 1), *((axis, 2) for axis in DATA_AXES)):
        if candidate.mesh.degree(axis) > 1:
            yield Collective("all_reduce", axis, "step", 8, count)


def _messages(best: Evaluation, index: int) -> Iterable[Collective]:
    """What stage `index` receives from and sends to its neighbours; a message is counted by both."""
    cuts = [best.stages[stage].units[0].messages for stage in (index, index + 1) if 0 < stage < len(best.stages)]
    for message in (message for messages in cuts for message in messages):
        yield replace(message, count=best.candidate.microbatches)


def _shared(best: Evaluation, index: int, setting: Setting) -> Iterable[Collective]:
    """Gradients of parameters that other stages hold too."""
    holders: dict[str, set[int]] = {}
    for stage, cost in enumerate(best.stages):
        for unit in cost.units:
            for placed in unit.parameters:
                if not unit.block and placed.parameter.trainable:
                    holders.setdefault(placed.parameter.fqn, set()).add(stage)
    mesh = best.candidate.mesh
    own = {p.parameter.fqn: p for unit in best.stages[index].units if not unit.block for p in unit.parameters}
    for fqn, stages in holders.items():
        if index in stages and len(stages) > 1:
            numel = prod(own[fqn].local_shape(mesh.tp))
            if best.candidate.zero:
                numel = padded_numel(own[fqn].local_shape(mesh.tp), mesh.shards) // mesh.shards
            axis = "pp" if len(stages) == mesh.pp else "world"
            yield Collective("all_reduce", axis, "step", numel * setting.precision.param_bytes)
