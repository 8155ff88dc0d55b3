"""Operators that only move data: reshapes, permutations, slices, concatenations, copies.

A slice of dim d passes through a reshape when d leads its group of merged or split dims and the leading dim on the other side is divisible
too: a contiguous slice of the group is then a contiguous slice of both dims. Everything here is linear, so sums pass through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from planner.ir.placement import P, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rule, Rules, divided, partial_gradient, repeated

Shape = tuple[int, ...]


def moved(call: Call, dims: Mapping[int, int]) -> Iterator[Strategy]:
    """Every input dim d of `dims` may be split and is then dim `dims[d]` of each output; sums pass."""
    inputs, outputs = len(call.inputs), len(call.outputs)
    for source, target in dims.items():
        yield divided((S(source),) * inputs, *(S(target),) * outputs)
    yield repeated((P,) * inputs, *(P,) * outputs)
    yield partial_gradient(call)


def reshape_groups(before: Shape, after: Shape) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The smallest groups of dims (before, after) with equal products, in order; dims of size 1 belong to none.

    (2, 3, 8) -> (6, 2, 4) gives (((0, 1), (0,)), ((2,), (1, 2))).
    """
    left = [dim for dim, size in enumerate(before) if size != 1]
    right = [dim for dim, size in enumerate(after) if size != 1]
    groups = []
    while left and right:
        group: tuple[list[int], list[int]] = ([left.pop(0)], [right.pop(0)])
        while (wide := prod(before[dim] for dim in group[0])) != (tall := prod(after[dim] for dim in group[1])):
            if wide < tall:
                group[0].append(left.pop(0))
            else:
                group[1].append(right.pop(0))
        groups.append((tuple(group[0]), tuple(group[1])))
    return tuple(groups)


def reshape(call: Call) -> Iterator[Strategy]:
    """view, _unsafe_view, reshape."""
    if prod(call.out) == 0:
        return
    yield from moved(call, {before[0]: after[0] for before, after in reshape_groups(call.shapes[0], call.out)})


def permute(call: Call) -> Iterator[Strategy]:
    """permute(x, dims): output dim i is input dim dims[i]."""
    order = call.arg(1)
    assert isinstance(order, tuple)
    ndim = len(call.out)
    yield from moved(call, {dim % ndim: position for position, dim in enumerate(order) if isinstance(dim, int)})


def transpose(call: Call) -> Iterator[Strategy]:
    """transpose(x, a, b)."""
    ndim = max(len(call.out), 1)
    yield from _swapped(call, call.integer(1) % ndim, call.integer(2) % ndim)


def t(call: Call) -> Iterator[Strategy]:
    """t(x): swaps the dims of a matrix, leaves a vector."""
    yield from _swapped(call, 0, len(call.out) - 1)


def _swapped(call: Call, first: int, second: int) -> Iterator[Strategy]:
    swap = {first: second, second: first}
    yield from moved(call, {dim: swap.get(dim, dim) for dim in range(len(call.out))})


def unsqueeze(call: Call) -> Iterator[Strategy]:
    """unsqueeze(x, dim)."""
    new = call.integer(1) % len(call.out)
    yield from moved(call, {dim: dim + (dim >= new) for dim in range(len(call.shapes[0]))})


def squeeze(call: Call) -> Iterator[Strategy]:
    """squeeze(x), squeeze(x, dim or dims): dims of size 1 go, the others keep their order."""
    shape = call.shapes[0]
    gone = [dim for dim in call.dims(1, len(shape)) if shape[dim] == 1]
    kept = [dim for dim in range(len(shape)) if dim not in gone]
    yield from moved(call, {dim: position for position, dim in enumerate(kept)})


def expand(call: Call) -> Iterator[Strategy]:
    """expand(x, sizes): aligned at the last dim; a repeated dim is not split."""
    shape, offset = call.shapes[0], len(call.out) - len(call.shapes[0])
    yield from moved(call, {dim: dim + offset for dim, size in enumerate(shape) if size == call.out[dim + offset]})


def same(call: Call) -> Iterator[Strategy]:
    """contiguous, alias, detach: every dim stays where it is."""
    yield from moved(call, {dim: dim for dim in range(len(call.shapes[0]))})


def clone(call: Call) -> Iterator[Strategy]:
    """As `same`, but DTensor reduces a sum before it copies it."""
    yield from (strategy for strategy in same(call) if strategy.inputs != (P,))


def along(position: int, default: int = 0) -> Rule:
    """Operators that cut, join or reorder one dim, named at argument `position`; the others stay where they are."""

    def rule(call: Call) -> Iterator[Strategy]:
        ndim = len(call.shapes[0])
        cut = call.integer(position, default) % max(ndim, 1)
        yield from moved(call, {dim: dim for dim in range(ndim) if dim != cut})

    return rule


def listed(call: Call) -> Iterator[Strategy]:
    """flip(x, dims), roll(x, shifts, dims): the listed dims stay whole, all of them if none is listed."""
    whole = call.dims(len(call.op.args) - 1, len(call.out))
    yield from moved(call, {dim: dim for dim in range(len(call.out)) if dim not in whole})


def unchanged(call: Call) -> Iterator[Strategy]:
    """constant_pad_nd, repeat: the dims that keep their size and place."""
    offset = len(call.out) - len(call.shapes[0])
    yield from moved(call, {dim: dim + offset for dim, size in enumerate(call.shapes[0]) if size == call.out[dim + offset]})


def removed(position: int, default: int = 0) -> Rule:
    """Operators that drop one dim: select, unbind."""

    def rule(call: Call) -> Iterator[Strategy]:
        ndim = len(call.shapes[0])
        gone = call.integer(position, default) % ndim
        yield from moved(call, {dim: dim - (dim > gone) for dim in range(ndim) if dim != gone})

    return rule


def stack(call: Call) -> Iterator[Strategy]:
    """stack(tensors, dim): a new dim."""
    new = call.integer(1) % len(call.out)
    yield from moved(call, {dim: dim + (dim >= new) for dim in range(len(call.shapes[0]))})


def view_as_complex(call: Call) -> Iterator[Strategy]:
    """The last dim of size 2 becomes the two parts of a complex number."""
    yield from moved(call, {dim: dim for dim in range(len(call.out))})


def view_as_real(call: Call) -> Iterator[Strategy]:
    """The two parts of a complex number become a new last dim."""
    yield from moved(call, {dim: dim for dim in range(len(call.shapes[0]))})


RULES: Rules = {
    **dict.fromkeys(("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"), reshape),
    **dict.fromkeys(("aten.contiguous.default", "aten.alias.default", "aten.detach.default", "aten.lift_fresh.default"), same),
    **dict.fromkeys(("aten.flip.default", "aten.roll.default"), listed),
    **dict.fromkeys(("aten.constant_pad_nd.default", "aten.repeat.default"), unchanged),
    "aten.clone.default": clone,
    **dict.fromkeys(("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"), squeeze),
    "aten.permute.default": permute,
    "aten.transpose.int": transpose,
    "aten.t.default": t,
    "aten.unsqueeze.default": unsqueeze,
    "aten.expand.default": expand,
    "aten.slice.Tensor": along(1),
    "aten.select.int": removed(1),
    "aten.unbind.int": removed(1),
    "aten.split.Tensor": along(2),
    "aten.split_with_sizes.default": along(2),
    "aten.chunk.default": along(2),
    "aten.cat.default": along(1),
    "aten.stack.default": stack,
    "aten.view_as_complex.default": view_as_complex,
    "aten.view_as_real.default": view_as_real,
}  # fmt: skip
