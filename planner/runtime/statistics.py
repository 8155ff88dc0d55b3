"""Batch norm in mixed precision: statistics, running statistics, scale and shift in the dtype of the running statistics.

Parameters reach forward in `compute_dtype`; buffers keep the dtype that they are stored in. No kernel of batch norm takes scale and shift in
another dtype than the running statistics, but all take an input in a narrower one than both, so the two vectors are widened for the call.
Their values have passed through `compute_dtype`, as those of every other parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from planner.ir.plan import Plan

NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
"""Modules with running statistics and a scale and shift beside them."""


def install(module: nn.Module, plan: Plan) -> None:
    """Makes the norms of `module` that keep running statistics compute in their dtype, where the plan computes in another one."""
    if plan.model.compute_dtype == plan.model.dtype:
        return
    for owner in module.modules():
        if isinstance(owner, NORMS) and owner.running_mean is not None and owner.affine:
            owner.forward = partial(widened, owner, owner.forward)


def widened(owner: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`forward` of `owner` while its parameters have the dtype of its running statistics; gradients flow back through the cast."""
    stored = dict(owner._parameters)
    statistics = owner.get_buffer("running_mean")
    owner._parameters.update({name: wide(value, like=statistics) for name, value in stored.items()})
    try:
        return forward(*args, **kwargs)
    finally:
        owner._parameters.update(stored)


def wide(value: nn.Parameter | None, *, like: Tensor) -> Any:
    """`value` in the dtype of `like`."""
    return None if value is None else value.to(like.dtype)
