"""Losses.

A loss that is summed, or not reduced, may be split over the samples: each rank has a summand. A mean may not (DTensor calls it `P(avg)`).

The cross entropy of logits split over the classes runs under `torch.distributed.tensor.parallel.loss_parallel`. It all-reduces, per sample,
the largest logit, the sum of exponentials and the chosen log probability, in forward; its backward communicates nothing and is valid only
for the pair log_softmax + nll_loss, so the layout between the two is one of its own, which nothing else accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from planner.ir.graph import DTYPE_BYTES, Tensor
from planner.ir.placement import Layout, P, Placement, R, S
from planner.ir.strategy import Collective, Strategy
from planner.rules.call import Call, Rules, divided, partial_gradient
from planner.rules.reduce import along

NONE, MEAN, SUM = 0, 1, 2
"""torch's numbers for a loss's reduction."""

_HALF = ("bfloat16", "float16")
_over_samples = along(1)


def _reduced(reduction: int, dim: int) -> Layout:
    return S(dim) if reduction == NONE else P


def _target(tensor: Tensor, dim: int) -> tuple[Layout, ...]:
    return (S(dim),) if tensor.requires_grad else (S(dim), R)


def elementwise_loss(call: Call) -> Iterator[Strategy]:
    """Losses of one number each: (input, target, ..., reduction)."""
    reduction = next(arg for arg in call.op.args if isinstance(arg, int) and not isinstance(arg, bool))
    if reduction == MEAN:
        return
    for dim in range(len(call.shapes[0])):
        for targets in product(*(_target(tensor, dim) for tensor in call.inputs[1:])):
            yield divided((S(dim), *targets), _reduced(reduction, dim))


def smooth_loss(call: Call) -> Iterator[Strategy]:
    """Those whose backward multiplies the gradient by a tensor: a gradient that is a sum may pass."""
    yield from elementwise_loss(call)
    yield partial_gradient(call)


def nll_loss(call: Call) -> Iterator[Strategy]:
    """nll_loss_forward(log probabilities (samples, classes), target, weight, reduction, ignore_index) -> (loss, total weight)."""
    if len(call.inputs) != 2:
        return
    reduction = call.integer(3)
    if reduction != MEAN:
        for target in (S(0), R):
            yield divided((S(0), target), _reduced(reduction, 0), R if reduction == NONE else P)
    chosen = call.inputs[0].nbytes // call.shapes[0][-1]
    yield Strategy((_classes(call), R), (R, R), divided=True, collectives=(Collective("all_reduce", "tp", "forward", chosen),))


def log_softmax(call: Call) -> Iterator[Strategy]:
    """_log_softmax(x, dim, half_to_float): over the samples, or over the classes of a matrix under loss_parallel."""
    yield from _over_samples(call)
    logits = call.inputs[0]
    if len(logits.shape) == 2 and call.integer(1) % 2 == 1:
        per_sample = 4 if logits.dtype in _HALF else DTYPE_BYTES[logits.dtype]
        reductions = Collective("all_reduce", "tp", "forward", logits.shape[0] * per_sample, 2)
        yield Strategy((S(1),), (_classes(call),), divided=True, collectives=(reductions,))


def _classes(call: Call) -> Layout:
    """Log probabilities split over the classes, on the way from log_softmax to nll_loss."""
    split = Placement("S", len(call.shapes[0]) - 1, "loss")
    return Layout(split, split)


RULES: Rules = {
    "aten._log_softmax.default": log_softmax,
    "aten.nll_loss_forward.default": nll_loss,
    "aten.mse_loss.default": smooth_loss,
    "aten.binary_cross_entropy_with_logits.default": smooth_loss,
    "aten.smooth_l1_loss.default": elementwise_loss,
    "aten.huber_loss.default": elementwise_loss,
}
