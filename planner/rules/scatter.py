"""Gathers and scatters: the indexed dim stays whole.

gather and scatter compare positions in all other dims, so data and indices are split alike there (an index without gradient may be whole:
DTensor cuts it). index_select, index_add and index take whole indices, and are linear in the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from planner.ir.graph import Tensor
from planner.ir.placement import RP, Layout, P, R, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided, repeated


def positional(call: Call) -> Iterator[Strategy]:
    """gather(x, dim, index), scatter(x, dim, index, source or number), scatter_add: all tensors alike in the dims not indexed."""
    ndim = len(call.out)
    whole = call.integer(1) % max(ndim, 1)
    for dim in range(ndim):
        if dim != whole and len({shape[dim] for shape in (*call.shapes, call.out)}) == 1:
            for inputs in product(*(_cut(tensor, dim) for tensor in call.inputs)):
                if any(layout.value.is_shard for layout in inputs):
                    yield divided(inputs, S(dim))


def _cut(tensor: Tensor, dim: int) -> tuple[Layout, ...]:
    return (S(dim),) if tensor.requires_grad else (S(dim), R)


def index_select(call: Call) -> Iterator[Strategy]:
    """index_select(x, dim, index)."""
    ndim = len(call.out)
    whole = call.integer(1) % ndim
    yield from (divided((S(dim), R), S(dim)) for dim in range(ndim) if dim != whole)
    yield repeated((P, R), P)
    yield repeated((RP, R), RP)


def index_add(call: Call) -> Iterator[Strategy]:
    """index_add(x, dim, index, source)."""
    ndim = len(call.out)
    whole = call.integer(1) % ndim
    yield from (divided((S(dim), R, S(dim)), S(dim)) for dim in range(ndim) if dim != whole)
    yield repeated((P, R, P), P)
    yield repeated((R, R, P), P)
    yield repeated((RP, R, RP), RP)


def index(call: Call) -> Iterator[Strategy]:
    """index(x, indices) with one index tensor of one dim, which keeps the number of dims."""
    if len(call.inputs) == 2 and len(call.shapes[1]) == 1 and len(call.out) == len(call.shapes[0]):
        places = call.op.args[1]
        assert isinstance(places, tuple)
        whole = next(position for position, place in enumerate(places) if place is not None)
        yield from (divided((S(dim), R), S(dim)) for dim in range(len(call.out)) if dim != whole)
        yield repeated((P, R), P)
        yield repeated((RP, R), RP)


def one_hot(call: Call) -> Iterator[Strategy]:
    """one_hot(indices, classes): a new last dim."""
    yield from (divided((S(dim),), S(dim)) for dim in range(len(call.shapes[0])))


def bucketize(call: Call) -> Iterator[Strategy]:
    """bucketize(x, boundaries)."""
    yield from (divided((S(dim), R), S(dim)) for dim in range(len(call.out)))


RULES: Rules = {
    "aten.one_hot.default": one_hot,
    "aten.bucketize.Tensor": bucketize,
    "aten.gather.default": positional,
    "aten.scatter.src": positional,
    "aten.scatter.value": positional,
    "aten.scatter_add.default": positional,
    "aten.index_select.default": index_select,
    "aten.index_add.default": index_add,
    "aten.index.Tensor": index,
}
