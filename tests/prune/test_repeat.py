"""Folding of fully recorded graphs, and the exit of the last copy, against what they replace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.models import gpt, mlp, two_tower
from planner.ir.family import flop_per_sample
from planner.ir.graph import Graph
from planner.prune.exits import split
from planner.prune.repeat import fold
from planner.trace.trace import record_at, trace_with
from tests.models.zoo import source


def full(name: str, **change: object) -> Graph:
    """A tiny model of the zoo, every block recorded."""
    return trace_with(replace(source(name), **change), compute_dtype=None, runs_of=lambda model: ()).low


def totals(graph: Graph) -> tuple[int, int, int, int]:
    """FLOPs, forward ops, backward ops and parameter elements of all copies."""
    return (
        flop_per_sample(graph),
        sum(graph.multiplicity(op) for op in graph.ops),
        sum(graph.multiplicity(op) for op in graph.backward),
        sum(graph.copies_of(p) * p.numel for p in graph.parameters),
    )


@pytest.mark.parametrize("layers", [4, 12, 24])
def test_equal_blocks_are_one_class(layers: int) -> None:
    """A GPT of L blocks folds into one region of L copies; embeddings and head stay single; nothing is lost."""
    graph = full("gpt:tiny", model=lambda: gpt.tiny(layers=layers))
    folded = fold(graph)
    assert [("layers.*", layers)] == [(region.glob, region.count) for region in folded.regions]
    assert totals(graph) == totals(folded)


@pytest.mark.parametrize("name", ["t5:tiny", "vit:tiny", "llama:tiny", "two_tower:tiny"])
def test_folding_a_full_recording_is_recording_folded(name: str) -> None:
    """The structural fold finds the regions that the tracer finds, with the same totals."""
    folded, recorded = fold(full(name)), record_at(source(name), batch=2)
    assert {(r.glob, r.copies) for r in recorded.regions} == {(r.glob, r.copies) for r in folded.regions}
    assert totals(recorded)[0] == pytest.approx(totals(folded)[0], rel=1e-3)
    assert totals(recorded)[3] == totals(folded)[3]


def test_two_encoders_are_two_classes() -> None:
    assert 2 == len(fold(full("two_tower:tiny")).regions)
    assert two_tower.tiny() is not None


def test_a_changed_width_is_not_merged() -> None:
    """One block of another width splits the run."""

    def uneven() -> mlp.MLP:
        model = mlp.tiny()
        block = model.layers[2]
        block.up, block.down = (
            type(block.up)(block.up.in_features, 2 * block.up.out_features),
            type(block.down)(2 * block.down.in_features, block.down.out_features),
        )
        return model

    folded = fold(full("mlp:tiny", model=uneven))
    assert all("layers.2" not in region.copies for region in folded.regions)


def test_min_dup_is_honoured() -> None:
    """Three copies stay as they are where four are asked for."""
    graph = full("gpt:tiny", model=lambda: gpt.tiny(layers=3))
    assert () == fold(graph, min_dup=4).regions
    assert 1 == len(fold(graph, min_dup=3).regions)


def test_the_last_copy_has_its_own_exit() -> None:
    """After the split every reader behind the region reads the last copy's border, and totals are unchanged."""
    graph = fold(full("gpt:tiny"))
    after = split(graph)
    (region,) = after.regions
    (border,) = region.inner
    leaving = next(op for op in after.ops if op.border == after.producer[border_output(after, border)].border.replace("layers.0", "layers.3"))
    outside = {op.name for name in after.producer[border_output(after, border)].outputs for op, _ in after.consumers.get(name, ())}
    assert outside <= set(region.ops)
    assert after.consumers[leaving.outputs[0]]
    assert totals(graph) == totals(after)


def border_output(graph: Graph, name: str) -> str:
    return next(op for op in graph.ops if op.name == name).outputs[0]
