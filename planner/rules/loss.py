"""Losses. An elementwise loss or a negative log likelihood that is summed may be split over the samples: each rank has a summand."""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import P, R, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided

NONE, MEAN, SUM = 0, 1, 2
"""torch's numbers for a loss's reduction."""


def elementwise_loss(call: Call) -> Iterator[Strategy]:
    """mse_loss, binary_cross_entropy(_with_logits): (input, target, ..., reduction)."""
    reduction = next(arg for arg in call.op.args if isinstance(arg, int) and not isinstance(arg, bool))
    for dim in range(len(call.shapes[0])):
        if reduction == NONE:
            yield divided((S(dim),) * len(call.inputs), S(dim))
        elif reduction == SUM:
            yield divided((S(dim),) * len(call.inputs), P)


def nll_loss(call: Call) -> Iterator[Strategy]:
    """nll_loss_forward(log probabilities (samples, classes), target, weight, reduction, ignore_index) -> (loss, total weight)."""
    if len(call.inputs) != 2 or call.arg(3) != NONE:
        return
    yield divided((S(0), S(0)), S(0), R)


RULES: Rules = {
    "aten.nll_loss_forward.default": nll_loss,
    "aten.nll_loss2d_forward.default": nll_loss,
    "aten.mse_loss.default": elementwise_loss,
    "aten.smooth_l1_loss.default": elementwise_loss,
    "aten.binary_cross_entropy.default": elementwise_loss,
    "aten.binary_cross_entropy_with_logits.default": elementwise_loss,
}
