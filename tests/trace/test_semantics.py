"""A plan says what it computes: the step of one process, or where that depends on how the batch is divided."""

import pytest
import torch
from torch import nn

from planner.ir.semantics import semantics
from planner.trace.trace import trace
from tests.trace.small import source


class Normed(nn.Module):
    def __init__(self, norm, count=1):
        super().__init__()
        self.norms = nn.ModuleList(norm() for _ in range(count))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        for norm in self.norms:
            x = norm(x)
        return self.head(x.mean(-1))


def graph_of(build):
    return trace(source(build, inputs=lambda size: {"x": torch.randn(size, 4, 6)})).low


OTHERS = {
    "layer norm": lambda: Normed(lambda: nn.LayerNorm(6)),
    "instance norm": lambda: Normed(lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
    "frozen batch norm": lambda: Normed(lambda: nn.BatchNorm1d(4).eval()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_norms_within_a_sample_are_exact(name):
    assert "exact" == semantics(graph_of(OTHERS[name]), parts=8)


def test_batch_norm_depends_on_how_the_batch_is_divided():
    """It is exact only where one call sees the whole batch; folded copies count."""
    one, three = (graph_of(lambda count=count: Normed(lambda: nn.BatchNorm1d(4), count)) for count in (1, 3))
    assert "exact" == semantics(one, parts=1)
    ending = "them over one microbatch of one rank, not over the global batch"
    assert f"exact but for batch statistics: batch norm norms.0 takes {ending}" == semantics(one, parts=2)
    assert f"exact but for batch statistics: 3 batch norms (norms.0 and others) take {ending}" == semantics(three, parts=2)
