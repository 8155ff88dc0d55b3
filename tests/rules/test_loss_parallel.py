"""The cross entropy of logits that are split over the classes."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.parallel import loss_parallel

from planner.ir.graph import TensorArg
from planner.ir.placement import Layout, Placement, Shard
from planner.ir.strategy import Collective, Strategy
from planner.rules.table import strategies
from tests.rules.oracle import Case, Recorder, Spec, distribute, from_torch, ranks, whole

pytestmark = pytest.mark.filterwarnings("ignore")

LOG_SOFTMAX = Case("aten._log_softmax.default", (Spec((8, 16)),), (TensorArg(0), 1, False))


def nll(reduction: int) -> Case:
    return Case("aten.nll_loss_forward.default", (Spec((8, 16)), Spec((8,), high=16)), (TensorArg(0), TensorArg(1), None, reduction, 3))


def split_classes(case: Case, degree: int) -> Strategy:
    """The strategy of `case` that carries log probabilities split over the classes."""
    op, tensors = case.graph()
    between = Layout(Placement("S", 1, "loss"), Placement("S", 1, "loss"))
    (found,) = (s for s in strategies(op, tensors, degree) if between in (*s.inputs, *s.outputs))
    return found


@pytest.mark.parametrize("reduction", [1, 2])
def test_it_communicates_what_the_two_strategies_declare(reduction: int) -> None:
    """Kinds, bytes and phases of the collectives, the values and the gradient are those of one device and of the table."""
    first, second = split_classes(LOG_SOFTMAX, 2), split_classes(nll(reduction), 2)
    logits, target = LOG_SOFTMAX.tensors()[0], torch.tensor([0, 15, 3, 7, 8, 3, 1, 2])
    expected = torch.nn.functional.cross_entropy(logits, target, reduction=("none", "mean", "sum")[reduction], ignore_index=3)
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    with ranks(2) as mesh, loss_parallel():
        placed = distribute(logits, Shard(1), mesh)
        replicated = distribute(target, second.inputs[1].value, mesh)
        with Recorder() as forward:
            log_probabilities = torch.ops.aten._log_softmax.default(placed, 1, False)
            loss, _ = torch.ops.aten.nll_loss_forward.default(log_probabilities, replicated, None, reduction, 3)
        with Recorder() as backward:
            (gradient,) = torch.autograd.grad(loss, placed)
        stated = [(c.kind, c.nbytes) for c in (*first.collectives, *second.collectives) for _ in range(c.count)]
        assert stated == forward.seen
        assert [] == backward.seen
        assert (second.outputs[0].value, first.inputs[0].grad) == (from_torch(loss.placements[0]), from_torch(gradient.placements[0]))
        torch.testing.assert_close(whole(loss), expected.detach())
        torch.testing.assert_close(whole(gradient), expected_gradient)


def test_half_precision_logits_are_reduced_in_single_precision() -> None:
    """log_softmax computes in float32, so its two all_reduces carry 4 bytes per sample; the chosen log probabilities carry 2."""
    half = Case(LOG_SOFTMAX.target, (Spec((8, 16), dtype=torch.bfloat16),), LOG_SOFTMAX.args)
    picked = Case(nll(1).target, (Spec((8, 16), dtype=torch.bfloat16), Spec((8,), high=16)), nll(1).args)
    assert (Collective("all_reduce", "tp", "forward", 32, 2),) == split_classes(half, 2).collectives
    assert (Collective("all_reduce", "tp", "forward", 16),) == split_classes(picked, 2).collectives
    with ranks(2) as mesh, loss_parallel(), Recorder() as forward:
        placed = distribute(half.tensors()[0], Shard(1), mesh)
        target = distribute(torch.zeros(8, dtype=torch.int64), Placement("R"), mesh)
        torch.ops.aten.nll_loss_forward.default(torch.ops.aten._log_softmax.default(placed, 1, False), target, None, 1, 3)
    assert [("all_reduce", 32), ("all_reduce", 32), ("all_reduce", 16)] == forward.seen


def test_nothing_else_accepts_what_lies_between() -> None:
    """Only the pair has a valid backward: an elementwise consumer of the log probabilities finds no such layout."""
    between = split_classes(LOG_SOFTMAX, 2).outputs[0]
    op, tensors = Case("aten.mul.Tensor", (Spec((8, 16)),), (TensorArg(0), 2.0)).graph()
    assert [] == [s for s in strategies(op, tensors, 2) if between in s.inputs]
