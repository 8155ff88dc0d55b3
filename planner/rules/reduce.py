"""Reductions and normalisations along dims: a split dim must not be one of them.

A sum over a split dim would be a sum over the ranks, but its gradient comes back whole, not split, so it is left out; the mean of a split dim
is `P(avg)` in DTensor, which no layout here describes.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import P, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rule, Rules, divided, partial_gradient, repeated


def _kept(call: Call, gone: tuple[int, ...]) -> dict[int, int]:
    """Input dim -> output dim of the dims that are not reduced."""
    ndim = len(call.shapes[0])
    if len(call.out) == ndim:
        return {dim: dim for dim in range(ndim) if dim not in gone}
    return {dim: dim - sum(other < dim for other in gone) for dim in range(ndim) if dim not in gone}


def reduction(position: int | None) -> Rule:
    """A reduction over the dims at argument `position`, over all dims if None: the others may be split."""

    def rule(call: Call) -> Iterator[Strategy]:
        ndim = len(call.shapes[0])
        gone = tuple(range(ndim)) if position is None else call.dims(position, ndim)
        for source, target in _kept(call, gone).items():
            yield divided((S(source),), *(S(target) for _ in call.outputs))

    return rule


def smooth_reduction(position: int | None) -> Rule:
    """A reduction whose backward multiplies the gradient by a tensor: a gradient that is a sum may pass."""
    reduced = reduction(position)

    def rule(call: Call) -> Iterator[Strategy]:
        yield from reduced(call)
        yield partial_gradient(call)

    return rule


def linear_reduction(position: int | None) -> Rule:
    """Sums: sums over the ranks pass through."""
    reduced = smooth_reduction(position)

    def rule(call: Call) -> Iterator[Strategy]:
        yield from reduced(call)
        yield repeated((P,), P)

    return rule


def along(position: int, default: int = -1) -> Rule:
    """softmax, cumsum, sort, topk: the shape stays, one dim must be whole."""

    def rule(call: Call) -> Iterator[Strategy]:
        ndim = len(call.shapes[0])
        whole = call.integer(position, default) % max(ndim, 1)
        for dim in range(ndim):
            if dim != whole:
                yield divided((S(dim),), *(S(dim) for _ in call.outputs))

    return rule


RULES: Rules = {
    "aten.sum.default": linear_reduction(None),
    "aten.sum.dim_IntList": linear_reduction(1),
    "aten.mean.default": smooth_reduction(None),
    "aten.mean.dim": smooth_reduction(1),
    **dict.fromkeys(("aten.amax.default", "aten.amin.default", "aten.logsumexp.default"), smooth_reduction(1)),
    **dict.fromkeys(("aten.var.correction", "aten.var_mean.correction"), smooth_reduction(1)),
    "aten.linalg_vector_norm.default": smooth_reduction(2),
    **dict.fromkeys(("aten.max.dim", "aten.min.dim", "aten.argmax.default", "aten.argmin.default", "aten.std.correction"), reduction(1)),
    **dict.fromkeys(("aten.any.dim", "aten.all.dim"), reduction(1)),
    **dict.fromkeys(("aten._softmax.default", "aten._safe_softmax.default", "aten.cumsum.default", "aten.logcumsumexp.default"), along(1)),
    "aten.topk.default": along(2),
    **dict.fromkeys(("aten.sort.default", "aten.argsort.default"), along(1)),
    **dict.fromkeys(("aten.any.default", "aten.all.default"), reduction(None)),
}
