"""Normalisations with weights: layer norm and RMS norm may be split in every dim they do not normalise, group norm in the batch; the weights
are whole and their gradients, summed over the split dim, are sums over the ranks. Batch norm needs all samples: replicated only."""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import RP, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided


def last_dims(call: Call) -> Iterator[Strategy]:
    """native_layer_norm, _fused_rms_norm: (x, normalized_shape, weight, ...) -> (y, statistics ...)."""
    normalized = call.arg(1)
    assert isinstance(normalized, tuple)
    for dim in range(len(call.shapes[0]) - len(normalized)):
        yield divided((S(dim), *(RP for _ in call.inputs[1:])), *(S(dim) for _ in call.outputs))


def batch(call: Call) -> Iterator[Strategy]:
    """native_group_norm: (x, weight, bias, ...) -> (y, statistics ...)."""
    yield divided((S(0), *(RP for _ in call.inputs[1:])), *(S(0) for _ in call.outputs))


def whole(call: Call) -> Iterator[Strategy]:
    """Only the all-replicated strategy, which the table adds."""
    yield from ()


RULES: Rules = {
    "aten.native_layer_norm.default": last_dims,
    "aten._fused_rms_norm.default": last_dims,
    "aten.native_group_norm.default": batch,
    "aten.native_batch_norm.default": whole,
    "aten.cudnn_batch_norm.default": whole,
    "aten._native_batch_norm_legit.default": whole,
    "aten._native_batch_norm_legit_functional.default": whole,
}
