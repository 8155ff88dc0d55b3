"""Scaled dot product attention on (batch, heads, sequence, head size): batch and heads are independent.

With grouped queries the KV heads must be divisible by the degree as well, which the table checks through their own dim. The statistics that
come out beside the result (log-sum-exp) have batch and heads in front too, except in the CPU kernel's, which has them as (batch, sequence,
heads); nothing in forward reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import RP, Layout, R, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided


def attention(call: Call) -> Iterator[Strategy]:
    """q, k, v and an optional mask that broadcasts to (batch, heads, queries, keys)."""
    for dim in (0, 1):
        masks = tuple(_mask(tensor.shape, call.shapes[0], dim) for tensor in call.inputs[3:])
        yield divided((S(dim),) * 3 + masks, S(dim), *(_statistic(tensor.shape, call.shapes[0], dim) for tensor in call.outputs[1:]))


def _mask(shape: tuple[int, ...], query: tuple[int, ...], dim: int) -> Layout:
    own = dim - (len(query) - len(shape))
    return S(own) if own >= 0 and shape[own] == query[dim] else RP


def _statistic(shape: tuple[int, ...], query: tuple[int, ...], dim: int) -> Layout:
    return S(dim) if shape[:2] == query[:2] else R


RULES: Rules = dict.fromkeys(
    (
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
    ),
    attention,
)
