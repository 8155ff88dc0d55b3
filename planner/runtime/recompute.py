"""Recompute: blocks that keep only their inputs and run forward again in backward.

Non-reentrant checkpointing without early stop, so that the second forward runs all collectives of the first and their number is exact.
The block's own border hooks lie outside it and do not run again. The state of the random number generators is kept.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from planner.ir.names import lookup
from planner.ir.plan import Plan


def install(module: nn.Module, plan: Plan) -> None:
    """Makes each block copy in `module` that the plan recomputes run its forward under checkpointing; names stay as they are."""
    for fqn, block in module.named_modules():
        if lookup(plan.recompute, fqn) == "full":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, early_stop=False)
