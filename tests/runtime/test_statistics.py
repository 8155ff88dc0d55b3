"""Batch norm of a float32 model that computes in bfloat16."""

from __future__ import annotations

import copy

import torch
from torch import nn

from benchmarks.models import resnet
from planner.ir.mesh import Mesh
from planner.runtime.statistics import install
from tests.runtime.plans import make_plan


class Norm(nn.Module):
    """One batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)
        nn.init.normal_(self.norm.weight)


def computing_in_bfloat16(model: nn.Module) -> nn.Module:
    """`model` as it reaches forward: parameters in bfloat16, running statistics as they are stored."""
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    install(model, make_plan(resnet.tiny(), resnet, mesh=Mesh(dp_shard=2), zero=3, compute_dtype="bfloat16"))
    return model


def test_statistics_are_those_of_float32() -> None:
    """The result is that of a float32 batch norm with the same scale, rounded once, and the running statistics are equal to its own."""
    torch.manual_seed(0)
    x = torch.randn(4, 8, 3, 3).bfloat16()
    model = computing_in_bfloat16(Norm())
    alone = copy.deepcopy(model.norm).float()
    del alone.forward
    expected, found = alone(x.float()), model.norm(x)
    assert torch.bfloat16 == found.dtype
    torch.testing.assert_close(expected.bfloat16(), found, rtol=0.01, atol=0.01)
    assert torch.float32 == model.norm.running_var.dtype
    torch.testing.assert_close(alone.running_mean, model.norm.running_mean)
    torch.testing.assert_close(alone.running_var, model.norm.running_var)


def test_gradients_come_back_in_the_dtype_of_the_parameters() -> None:
    """The module holds its own parameters after the call, and their gradients in their dtype."""
    model = computing_in_bfloat16(Norm())
    weight = model.norm.weight
    model.norm(torch.randn(4, 8, 3, 3).bfloat16()).float().square().sum().backward()
    assert weight is model.norm.weight
    assert torch.bfloat16 == weight.grad.dtype


def test_a_plan_in_one_dtype_changes_nothing() -> None:
    """Without mixed precision torch's own forward runs."""
    model = Norm()
    install(model, make_plan(resnet.tiny(), resnet, mesh=Mesh(dp_shard=2), zero=3))
    assert "forward" not in vars(model.norm)
