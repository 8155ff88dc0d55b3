"""What a redistribution at a border costs: the strategies of a `border` op.

The value goes from `in.value` to `out.value` in forward, the gradient from `out.grad` to `in.grad` in backward:

    from  to    collective       bytes counted
    same  same  none
    P     R     all_reduce       the whole tensor
    P     S     reduce_scatter   the whole tensor
    S     R     all_gather       the whole tensor
    S     S'    all_to_all       what one rank holds
    R     S     none (a slice)

R to P and S to P are left out: they only invent sums to do.
"""

from __future__ import annotations

from planner.ir.graph import Tensor
from planner.ir.placement import RP, Layout, P, Placement, R, S
from planner.ir.strategy import Collective, Strategy
from planner.rules.embedding import MASKED


def transitions(tensor: Tensor, degree: int) -> tuple[Strategy, ...]:
    """All strategies of a border on `tensor`, the one that changes nothing and communicates nothing first."""
    if degree == 1:
        return (Strategy((R,), (R,), divided=False),)
    slices = tuple(S(dim) for dim, size in enumerate(tensor.shape) if size and size % degree == 0)
    whole = (R, RP) if tensor.requires_grad else (R,)
    outputs = (*whole, *slices, P)
    found = []
    for before in (*outputs, MASKED):
        for after in (*outputs, MASKED) if before == MASKED else outputs:
            if _possible(before, after, tensor.requires_grad):
                found.append(Strategy((before,), (after,), divided=False, collectives=_collectives(tensor, before, after, degree)))
    return tuple(found)


def _possible(before: Layout, after: Layout, requires_grad: bool) -> bool:
    forward = _convertible(before.value, after.value)
    return forward and (not requires_grad or _convertible(after.grad, before.grad))


def _convertible(source: Placement, target: Placement) -> bool:
    return source == target or not target.is_partial


def _collectives(tensor: Tensor, before: Layout, after: Layout, degree: int) -> tuple[Collective, ...]:
    forward = _collective(tensor, before.value, after.value, "forward", degree)
    backward = _collective(tensor, after.grad, before.grad, "backward", degree) if tensor.requires_grad else ()
    return forward + backward


def _collective(tensor: Tensor, source: Placement, target: Placement, phase: str, degree: int) -> tuple[Collective, ...]:
    if source == target or source.is_replicate:
        return ()
    if source.is_shard and target.is_shard:
        return (Collective("all_to_all", "tp", phase, tensor.nbytes // degree),)
    if source.is_shard:
        return (Collective("all_gather", "tp", phase, tensor.nbytes),)
    return (Collective("all_reduce" if target.is_replicate else "reduce_scatter", "tp", phase, tensor.nbytes),)
