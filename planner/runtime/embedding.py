"""Lookups in a table that is split by rows over tp.

DTensor computes such a table's gradient whole on every rank. A parameter must get its gradient in its own placement, also while it adds up
over microbatches, so each rank cuts its rows out at once; that communicates nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from planner.ir.plan import Plan
from planner.runtime.placements import parameter_names, tp_placement


class _Rows(Function):  # type: ignore[misc]  # torch is untyped here
    """The identity on a table whose gradient arrives whole."""

    @staticmethod
    def forward(ctx: Any, table: DTensor) -> Tensor:
        ctx.placements = table.placements
        return table.view_as(table)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> Tensor:
        return grad.redistribute(placements=ctx.placements)


def install(module: nn.Module, plan: Plan) -> None:
    """Makes the embeddings of `module` that the plan splits by rows cut their gradient."""
    names = parameter_names(module)
    for owner in module.modules():
        if isinstance(owner, nn.Embedding) and type(owner).forward is nn.Embedding.forward:
            placement = tp_placement(plan, names[owner.weight])
            if placement.is_shard and placement.dim == 0:
                owner.forward = partial(lookup_rows, owner)


def lookup_rows(owner: nn.Embedding, tokens: Tensor) -> Tensor:
    """`nn.Embedding.forward` on a table that cuts its gradient."""
    table = _Rows.apply(owner.weight)
    return F.embedding(tokens, table, owner.padding_idx, owner.max_norm, owner.norm_type, owner.scale_grad_by_freq, owner.sparse)
