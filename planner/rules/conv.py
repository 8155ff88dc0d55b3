"""Convolution, pooling and upsampling of images (batch, channels, height, width).

A convolution may be split over the batch only: DTensor takes other splits and returns wrong values without an error. Pooling and
upsampling treat every channel alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import RP, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided


def convolution(call: Call) -> Iterator[Strategy]:
    """convolution(x, weight, bias, ...)."""
    if len(call.shapes[0]) == len(call.shapes[1]):
        yield divided((S(0), *(RP for _ in call.inputs[1:])), S(0))


def per_channel(call: Call) -> Iterator[Strategy]:
    """Pooling and upsampling: (x, ...) -> (y, indices ...)."""
    for dim in range(len(call.shapes[0]) - 2):
        yield divided((S(dim),), *(S(dim) for _ in call.outputs))


RULES: Rules = {
    "aten.convolution.default": convolution,
    "aten.max_pool2d_with_indices.default": per_channel,
    "aten._adaptive_avg_pool2d.default": per_channel,
    "aten.upsample_nearest2d.default": per_channel,
    "aten.upsample_bilinear2d.default": per_channel,
}
