"""Reductions and normalisations along dims: a split dim must not be one of them, except that a sum over a split dim is a sum over the ranks."""

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


def linear_reduction(position: int | None) -> Rule:
    """Sums: a split dim that is summed leaves a sum over the ranks, and sums pass through."""

    def rule(call: Call) -> Iterator[Strategy]:
        ndim = len(call.shapes[0])
        gone = tuple(range(ndim)) if position is None else call.dims(position, ndim)
        kept = _kept(call, gone)
        for dim in range(ndim):
            yield divided((S(dim),), S(kept[dim]) if dim in kept else P)
        yield repeated((P,), P)
        yield partial_gradient(call)

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
    "aten.mean.default": reduction(None),
    "aten.mean.dim": reduction(1),
    **dict.fromkeys(("aten.amax.default", "aten.amin.default", "aten.logsumexp.default", "aten.prod.dim_int"), reduction(1)),
    **dict.fromkeys(("aten.max.dim", "aten.min.dim", "aten.argmax.default", "aten.argmin.default"), reduction(1)),
    **dict.fromkeys(("aten.var.correction", "aten.std.correction", "aten.var_mean.correction", "aten.any.dim", "aten.all.dim"), reduction(1)),
    "aten.linalg_vector_norm.default": reduction(2),
    **dict.fromkeys(("aten._softmax.default", "aten._log_softmax.default", "aten.cumsum.default", "aten.cumprod.default"), along(1)),
    "aten.topk.default": along(2),
    "aten.sort.default": along(1),
}  # fmt: skip
