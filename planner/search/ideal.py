"""A model divided perfectly over tp, free of communication: less than any placement needs, and known without a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.ir.graph import Graph, Op, Region
from planner.search.price import Pricer
from planner.search.space import saved_makers


@dataclass(frozen=True, slots=True)
class IdealBlock:
    """One of `count` copies of a block: elements of its parameters, bytes per microbatch that it saves or, recomputed, keeps of its input."""

    count: int
    numel: float
    saved_bytes: float
    entry_bytes: float


@dataclass(frozen=True, slots=True)
class Ideal:
    """Seconds per microbatch, seconds of one more forward of the repeated blocks, elements of parameters, bytes kept per microbatch without
    (`saved_bytes`) and with (`entry_bytes`) full recompute."""

    seconds: float
    again_s: float
    numel: float
    trainable_numel: float
    saved_bytes: float
    entry_bytes: float
    blocks: tuple[IdealBlock, ...]


def ideal(pricer: Pricer) -> Ideal:
    """The sums over all ops, parameters and saved activations of the pricer's graph, each divided by its degree."""
    graph, degree = pricer.graph, pricer.degree
    prices = [(graph.multiplicity(op), op.name in graph.region_of, pricer.ideal(op)) for op in graph.ops]
    parameters = [(p.trainable, graph.copies_of(p) * p.numel / degree) for p in graph.parameters]
    saved = saved_makers(graph)
    kept = [(op, graph.by_name[name].nbytes / degree) for op in graph.ops if not op.border for name in op.outputs if name in saved]
    blocks = tuple(_block(graph, region, kept, degree) for region in graph.regions)
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


def _block(graph: Graph, region: Region, kept: Sequence[tuple[Op, float]], degree: int) -> IdealBlock:
    inside = frozenset(region.ops)
    return IdealBlock(
        count=region.count,
        numel=sum(p.numel / degree for p in graph.parameters if p.trainable and p.fqn.startswith(region.copies[0] + ".")),
        saved_bytes=sum(nbytes for op, nbytes in kept if op.name in inside),
        entry_bytes=sum(graph.by_name[read].nbytes / degree for read, _ in region.carried),
    )
