"""Where a model may be cut, and what a cut sends."""

from __future__ import annotations

import pytest

from costmodels.hardware import preset
from planner.ir.options import Options
from planner.prune.exits import split
from planner.prune.repeat import fold
from planner.search.pool import Pool
from planner.search.setting import setting_of
from planner.search.space import Weights
from planner.search.units import unit_names
from planner.simulate.makespan import makespan_s
from planner.trace.trace import trace
from tests.models.zoo import source

EXPECTED = {
    "gpt:tiny": ["embedding", "position", "layers.0", "norm", "head"],
    "mlp:tiny": ["layers.0", "layers.1"],
    "resnet:tiny": ["stem", "stages.0.layers.0", "stages.0.layers.1", "stages.1.layers.0", "stages.1.layers.1", "head"],
    "t5:tiny": ["embedding", "encoder.bias", "encoder.layers.0", "encoder.norm", "decoder.bias", "decoder.layers.0", "decoder.norm", "head"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_units_begin_at_blocks_and_at_the_modules_around_them(name: str) -> None:
    """Lists and modules that hold blocks are gone into; a folded run shows its first copy."""
    graph = split(fold(trace(source(name)).low))
    assert EXPECTED[name] == list(dict.fromkeys(unit_names(graph)))


def test_a_cut_between_blocks_sends_the_residual_stream() -> None:
    """4 samples of 16 tokens, 32 wide, float32: 8 KiB forward and back; what follows from the batch alone is not sent."""
    family = trace(source("gpt:tiny"))
    pool = Pool(family, setting_of(family, preset("h100"), Options(), makespan_s))
    placed = pool.placed(4, 1, Weights(0.0, 0.0, False, 0.0, 0.0))
    assert placed is not None
    units = {unit.begin: unit for unit in placed[1].units}
    assert ["embedding", "position", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "head"] == list(units)
    width = pool.graph(4).by_name[units["layers.1"].crossings[0]].shape
    assert [4 * width[1] * width[2] * 4] * 2 == [message.nbytes for message in units["layers.1"].messages]
    assert ["forward", "backward"] == [message.phase for message in units["layers.1"].messages]
    assert () == units["embedding"].messages
