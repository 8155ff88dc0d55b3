"""Normalisations with weights.

Layer norm and RMS norm may be split in every dim they do not normalise; the weights are whole and their gradients, summed over the split
dim, are sums over the ranks. Batch norm needs all samples: replicated only. Group norm has no rule, because DTensor cannot run its backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import RP, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided
from planner.rules.pointwise import nothing


def last_dims(call: Call) -> Iterator[Strategy]:
    """native_layer_norm, _fused_rms_norm: (x, normalized_shape, weight, ...) -> (y, statistics ...)."""
    normalized = call.arg(1)
    assert isinstance(normalized, tuple)
    for dim in range(len(call.shapes[0]) - len(normalized)):
        yield divided((S(dim), *(RP for _ in call.inputs[1:])), *(S(dim) for _ in call.outputs))


RULES: Rules = {
    "aten.native_layer_norm.default": last_dims,
    "aten._fused_rms_norm.default": last_dims,
    "aten.native_batch_norm.default": nothing,
    "aten.cudnn_batch_norm.default": nothing,
    "aten._native_batch_norm_legit.default": nothing,
    "aten._native_batch_norm_legit_functional.default": nothing,
}
