"""What crosses a cut, and how it lies there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.models import gpt
from planner.errors import MismatchError
from planner.ir.mesh import Mesh
from planner.ir.placement import Layout, Partial, R, Replicate, S, Shard
from planner.ir.plan import Activation
from planner.runtime.crossing import Crossing, cut_layouts
from planner.runtime.stage import Value
from tests.runtime.plans import make_plan

VALUE = Value("x", (2, 16, 32), torch.float32, True, "layers.1:output", "layers.2:input")


@pytest.mark.parametrize(
    ("border", "activation", "layout"),
    [
        ("layers.*:output", Activation(Partial(), Shard(1), Shard(1), Replicate()), S(1)),
        ("layers.1:output", Activation(Partial(), Replicate(), Partial(), Replicate()), Layout(Replicate(), Partial())),
        ("layers.2:input", Activation(Shard(1), Replicate(), Partial(), Shard(1)), S(1)),
        ("layers.3:input", Activation(Shard(1), Replicate(), Partial(), Shard(1)), R),
    ],
)
def test_a_cut_has_the_layout_of_its_border(border: str, activation: Activation, layout: Layout) -> None:
    """As handed on by the module before the cut, else as the module after it takes it, else R/R."""
    plan = make_plan(gpt.tiny(), gpt, mesh=Mesh(pp=2, tp=2))
    assert (layout,) == cut_layouts(replace(plan, activations=((border, activation),)), [VALUE])


def test_a_wrong_shape_is_named() -> None:
    """A batch of another size than the plan's reaches the cut as an error, not as a message that never matches."""
    crossing = Crossing(VALUE, R, None)
    text = r"\(layers\.1:output\) is \(3, 16, 32\) torch\.float32 instead of \(2, 16, 32\) torch\.float32; pass microbatches with the shapes"
    with pytest.raises(MismatchError, match=text):
        crossing.leave(torch.zeros(3, 16, 32))


def test_an_unused_value_sends_back_zeros() -> None:
    """The stage before waits for a gradient whether or not the value was used."""
    crossing = Crossing(VALUE, R, None)
    assert torch.equal(torch.zeros(2, 16, 32), crossing.leave_grad(None, torch.device("cpu")))
