"""Two plans written by hand: one with every axis and table in use, one as plain as a plan can be."""

from __future__ import annotations

from dataclasses import replace

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

GIB = 2**30
R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()

MODEL = ModelInfo(
    name="llama_8b",
    fingerprint="sha256:" + "0123456789abcdef" * 4,
    parameters=8_030_261_248,
    inputs=(InputInfo((0,), (2, 8192), "int64"),),
    blocks=(BlockInfo("layers.*", tuple(f"layers.{layer}" for layer in range(32))),),
    dtype="float32",
    compute_dtype="bfloat16",
    reduce_dtype="float32",
    tokens_per_sample=8192,
    flop_per_sample=447_000_000_000_000,
    coverage=0.991,
    unmodelled=("aten.cumsum.default",),
)

FULL = Plan(
    model=MODEL,
    cluster=ClusterInfo("h100", "sha256:" + "f" * 64, 16, 8, 80 * GIB, False),
    mesh=Mesh(pp=2, dp_shard=2, tp=4),
    stages=(
        Stage("", ("embedding", *(f"layers.{layer}" for layer in range(17)))),
        Stage("layers.17", (*(f"layers.{layer}" for layer in range(17, 32)), "norm", "head")),
    ),
    parameters=(
        ("embedding.weight", (R, S0, S1)),
        ("head.weight", (R, S0, S0)),
        ("layers.*.attention.wo.weight", (R, S0, S1)),
        ("layers.*.attention.wq.weight", (R, S0, S0)),
        ("layers.*.attention_norm.weight", (R, S0, R)),
        ("norm.weight", (R, S0, R)),
    ),
    activations=(
        (":output[0]", Activation(S1, R, R, S1)),
        ("layers.*.attention.wo:output", Activation(P, S1, R, S1)),
        ("layers.*.attention_norm:output", Activation(S1, R, P, S1)),
    ),
    ties=(("embedding.weight", "lookup.weight"),),
    buffers=("frequencies",),
    rng="offset by rank along tp",
    recompute=(("layers.*", "full"),),
    offload=(),
    schedule=ScheduleInfo("1f1b", 16, 2, 1, 1, 64),
    semantics="exact",
    constraints=Constraints((("pp", 2), ("tp", 4)), 70 * GIB, "auto"),
    prediction=Prediction(
        step_time_s=2.5,
        step_time_low_s=2.1,
        step_time_high_s=3.1,
        samples_per_s=25.6,
        tokens_per_s=209_715.2,
        mfu=0.452,
        bubble_of_total=0.0588,
        breakdown_s=Breakdown(1.6, 0.4, 0.2, 0.05, 0.0029, 0.147, 0.1001),
        peak_memory_bytes=(52 * GIB, 44 * GIB),
        memory_bytes=(
            MemoryKinds(8 * GIB, 4 * GIB, 12 * GIB, 24 * GIB, 0, 2 * GIB, 2 * GIB),
            MemoryKinds(8 * GIB, 4 * GIB, 12 * GIB, 16 * GIB, 0, 2 * GIB, 2 * GIB),
        ),
        collectives=(
            (
                Collective("all_gather", "tp", "forward", 134_217_728, 1088),
                Collective("reduce_scatter", "tp", "backward", 134_217_728, 1088),
                Collective("p2p", "pp", "forward", 134_217_728, 16),
            ),
            (Collective("all_gather", "tp", "forward", 134_217_728, 960),),
        ),
    ),
    search=Search(
        candidates=412,
        illegal=96,
        bounded_away=280,
        out_of_memory=14,
        solved=22,
        variables=1234,
        bound_s=2.45,
        gap=0.0204,
        ended_by="every candidate was decided",
    ),
    illegal=(
        Illegal("tp=16", "8 KV heads are not divisible by 16"),
        Illegal("pp=2, ZeRO-2", "torch accumulates unsharded gradients in a pipeline"),
    ),
    alternatives=(
        Alternative(
            Mesh(dp_shard=16),
            ScheduleInfo("gpipe", 1, 4, 1, 3, 64),
            "full",
            2.62,
            61 * GIB,
            "4.8 % slower: 0.31 s of dp communication are not hidden between the nodes",
        ),
        Alternative(Mesh(pp=4, tp=4), ScheduleInfo("1f1b", 64, 1, 1, 0, 64), "none", 2.9, 70 * GIB, "16.0 % slower: the bubble"),
    ),
    provenance=(("autopar", "0.1.0"), ("torch", "2.13.0")),
)
"""Two pipeline stages, tensor, sequence and sharded data parallelism, recompute: every table has rows."""

PLAIN = replace(
    FULL,
    model=replace(MODEL, name="mlp", dtype="float32", compute_dtype="float32", coverage=1.0, unmodelled=(), blocks=(), tokens_per_sample=0),
    cluster=ClusterInfo("cpu-gloo", "sha256:" + "e" * 64, 1, 1, 8 * GIB, True),
    mesh=Mesh(),
    stages=(Stage("", ("first", "second")),),
    parameters=(("first.weight", (R, R, R)), ("second.weight", (R, R, R))),
    activations=(),
    ties=(),
    buffers=(),
    recompute=(),
    schedule=ScheduleInfo("gpipe", 1, 8, 1, 0, 8),
    constraints=Constraints((), 0, "auto"),
    prediction=Prediction(
        step_time_s=0.0123,
        step_time_low_s=0.01,
        step_time_high_s=0.015,
        samples_per_s=650.4,
        tokens_per_s=0.0,
        mfu=0.3,
        bubble_of_total=0.0,
        breakdown_s=Breakdown(0.0113, 0.0, 0.0, 0.0, 0.0, 0.0, 0.001),
        peak_memory_bytes=(60 * 2**20,),
        memory_bytes=(MemoryKinds(12 * 2**20, 12 * 2**20, 24 * 2**20, 4 * 2**20, 0, 0, 8 * 2**20),),
        collectives=((),),
    ),
    search=Search(1, 0, 0, 0, 1, 0, 0.0123, 0.0, "every candidate was decided"),
    illegal=(),
    alternatives=(),
    provenance=(),
)
"""A small model on one CPU: nothing is split, nothing lost, nothing ruled out."""
