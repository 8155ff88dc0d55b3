"""Hypothesis strategies for the plain data of planner.ir."""

from __future__ import annotations

from hypothesis import strategies as st

from planner.ir.batch import InputInfo
from planner.ir.mesh import Mesh
from planner.ir.placement import Partial, Replicate, Shard
from planner.ir.plan import (
    Activation,
    Alternative,
    BlockInfo,
    Breakdown,
    ClusterInfo,
    Constraints,
    Illegal,
    MemoryKinds,
    ModelInfo,
    Plan,
    Prediction,
    ScheduleInfo,
    Search,
    Stage,
)
from planner.ir.strategy import Collective

names = st.text(alphabet="abcxyz_.*0123456789é", min_size=1, max_size=12)
texts = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=30)
counts = st.integers(0, 10**15)
numbers = st.floats(0, 1e12, allow_nan=False, allow_infinity=False)
fractions = st.floats(0, 1, allow_nan=False)
degrees = st.sampled_from((1, 2, 3, 4, 8))
at_rest = st.one_of(st.just(Replicate()), st.integers(0, 4).map(Shard))
placements = st.one_of(at_rest, st.sampled_from(("sum", "max")).map(Partial))
meshes = st.builds(Mesh, pp=degrees, dp_replicate=degrees, dp_shard=degrees, tp=degrees)
collectives = st.builds(
    Collective,
    kind=st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "p2p")),
    axis=st.sampled_from(("tp", "dp_shard", "pp")),
    phase=st.sampled_from(("forward", "backward", "step")),
    nbytes=counts,
    count=counts,
)
models = st.builds(
    ModelInfo,
    name=texts,
    fingerprint=st.text(alphabet="0123456789abcdef", min_size=64, max_size=64).map("sha256:".__add__),
    parameters=counts,
    inputs=st.lists(
        st.builds(InputInfo, path=st.lists(st.one_of(names, st.integers(0, 5)), max_size=3).map(tuple), shape=st.tuples(counts), dtype=names),
        max_size=2,
    ).map(tuple),
    blocks=st.dictionaries(names, st.lists(names, min_size=1, max_size=3).map(tuple), max_size=2).map(
        lambda found: tuple(BlockInfo(glob, copies) for glob, copies in sorted(found.items()))
    ),
    dtype=names,
    compute_dtype=names,
    reduce_dtype=names,
    tokens_per_sample=counts,
    flop_per_sample=counts,
    coverage=fractions,
    unmodelled=st.lists(texts, max_size=2).map(tuple),
)
memory_kinds = st.builds(MemoryKinds, *[counts] * 7)


def table(values: st.SearchStrategy, **bounds: int) -> st.SearchStrategy:  # type: ignore[type-arg]
    """Name-keyed pairs, sorted by name, as a plan holds them."""
    return st.dictionaries(names, values, max_size=bounds.get("max_size", 3)).map(lambda found: tuple(sorted(found.items())))


@st.composite
def schedules(draw: st.DrawFn, mesh: Mesh | None = None, virtual: int | None = None) -> ScheduleInfo:
    microbatches, size = draw(st.integers(1, 64)), draw(st.integers(1, 8))
    return ScheduleInfo(
        name=draw(st.sampled_from(("1f1b", "gpipe"))),
        microbatches=microbatches,
        microbatch_size=size,
        virtual=draw(st.integers(1, 2)) if virtual is None else virtual,
        zero=draw(st.integers(0, 3)),
        global_batch=microbatches * size * (mesh.dp if mesh else 1),
    )


@st.composite
def predictions(draw: st.DrawFn, stages: int) -> Prediction:
    return Prediction(
        **{name: draw(numbers) for name in ("step_time_s", "step_time_low_s", "step_time_high_s", "samples_per_s", "tokens_per_s", "mfu")},
        bubble_of_total=draw(fractions),
        breakdown_s=Breakdown(*draw(st.tuples(*[numbers] * 7))),
        peak_memory_bytes=draw(st.tuples(*[counts] * stages)),
        memory_bytes=draw(st.tuples(*[memory_kinds] * stages)),
        collectives=draw(st.tuples(*[st.lists(collectives, max_size=2).map(tuple)] * stages)),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans whose parts fit each other; names and numbers are arbitrary."""
    mesh = draw(meshes)
    schedule = draw(schedules(mesh=mesh))
    stages = mesh.pp * schedule.virtual
    return Plan(
        model=draw(models),
        cluster=ClusterInfo(draw(texts), draw(texts), mesh.world_size, draw(degrees), draw(counts), draw(st.booleans())),
        mesh=mesh,
        stages=tuple(Stage(draw(texts), (draw(names),)) for _ in range(stages)),
        parameters=draw(table(st.tuples(at_rest, at_rest, at_rest))),
        activations=draw(table(st.builds(Activation, placements, placements, placements, placements))),
        ties=draw(st.lists(st.tuples(names, names), max_size=2).map(tuple)),
        buffers=draw(st.lists(names, max_size=2).map(tuple)),
        rng=draw(texts),
        recompute=draw(table(st.sampled_from(("none", "full")))),
        offload=draw(table(texts)),
        schedule=schedule,
        semantics=draw(names),
        constraints=Constraints(draw(st.sampled_from(((), (("pp", 2),), (("pp", 2), ("tp", 4))))), draw(counts), "auto"),
        prediction=draw(predictions(stages)),
        search=Search(*draw(st.tuples(*[counts] * 6)), bound_s=draw(numbers), gap=draw(numbers), ended_by=draw(texts)),
        illegal=draw(st.lists(st.builds(Illegal, texts, texts), max_size=2).map(tuple)),
        alternatives=draw(st.lists(st.builds(Alternative, meshes, schedules(), texts, numbers, counts, texts), max_size=2).map(tuple)),
        provenance=draw(table(texts)),
    )
