"""Sharding of the CPU's attention kernel, which DTensor lacks: batch and heads are independent, as in its rules for the other kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Placements = list[Replicate | Shard | None]
Sharding = tuple[Placements, Placements]

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def register() -> None:
    """Teaches DTensor both directions of the kernel; doing so again changes nothing."""
    register_sharding(_FORWARD)(forward_shardings)
    register_sharding(_BACKWARD)(backward_shardings)


def forward_shardings(query: Any, key: Any, value: Any, *rest: Any, attn_mask: Any = None, **_scale: Any) -> list[Sharding]:
    """(output, logsumexp) and the inputs, all (batch, heads, ...)."""
    return shardings(query, outputs=2, inputs=3, scalars=len(rest), mask=attn_mask)


def backward_shardings(_grad: Any, query: Any, *rest: Any, attn_mask: Any = None, **_scale: Any) -> list[Sharding]:
    """The gradients of query, key and value; the inputs are (grad, query, key, value, output, logsumexp) and two scalars."""
    return shardings(query, outputs=3, inputs=6, scalars=len(rest) - 4, mask=attn_mask)


def shardings(query: Any, *, outputs: int, inputs: int, scalars: int, mask: Any) -> list[Sharding]:
    """Everything replicated, or everything split over batch or over heads; a mask is split where it is not broadcast."""
    found: list[Sharding] = []
    for placement in (Replicate(), Shard(0), Shard(1)):
        masks = [] if mask is None else [mask_placement(placement, query.shape, mask.shape)]
        found.append(([placement] * outputs, [*[placement] * inputs, *[None] * scalars, *masks]))
    return found


def mask_placement(placement: Replicate | Shard, query: tuple[int, ...], mask: tuple[int, ...]) -> Replicate | Shard:
    """Where the mask lies when the query lies at `placement`."""
    if isinstance(placement, Replicate):
        return placement
    own = placement.dim - (len(query) - len(mask))
    return Shard(own) if own >= 0 and mask[own] == query[placement.dim] else Replicate()
