"""Reshapes: a slice that passes is the same slice."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.ir.graph import Op, Tensor, TensorArg
from planner.rules.table import strategies
from planner.rules.view import reshape_groups

Shape = tuple[int, ...]


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two shapes with equal products: both merge neighbours of one fine shape, and have ones strewn in."""
    fine = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=5))
    return merged(draw, fine), merged(draw, fine)


def merged(draw: st.DrawFn, fine: list[int]) -> Shape:
    shape = [fine[0]]
    for size in fine[1:]:
        if draw(st.booleans()):
            shape[-1] *= size
        else:
            shape.append(size)
    if draw(st.booleans()):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


def offered(before: Shape, after: Shape, degree: int) -> list[tuple[int, int]]:
    """(input dim, output dim) of every slice that passes the reshape."""
    tensors = {name: Tensor(name, shape, "float32", name, True) for name, shape in (("x", before), ("y", after))}
    op = Op("view", "aten.view.default", ("x",), ("y",), (TensorArg(0), after), "", 0)
    return [(s.inputs[0].value.dim, s.outputs[0].value.dim) for s in strategies(op, tensors, degree) if s.divided]


@given(reshapes(), st.sampled_from([2, 3, 4]))
def test_slicing_and_reshaping_commute(shapes: tuple[Shape, Shape], degree: int) -> None:
    """Rank r's slice of the input, reshaped, is rank r's slice of the output."""
    before, after = shapes
    whole = np.arange(prod(before)).reshape(before)
    for source, target in offered(before, after, degree):
        pieces = np.split(whole, degree, source)
        for mine, expected in zip(pieces, np.split(whole.reshape(after), degree, target), strict=True):
            np.testing.assert_array_equal(expected, mine.reshape(expected.shape))


@given(reshapes())
def test_groups_partition_the_dims_larger_than_one(shapes: tuple[Shape, Shape]) -> None:
    """Every such dim is in one group, and a group has one product on both sides."""
    groups = reshape_groups(*shapes)
    for side, shape in enumerate(shapes):
        assert [dim for dim, size in enumerate(shape) if size > 1] == [dim for group in groups for dim in group[side]]
    for merged_dims, split_dims in groups:
        assert prod(shapes[0][dim] for dim in merged_dims) == prod(shapes[1][dim] for dim in split_dims)


@given(reshapes(), st.sampled_from([2, 3]))
def test_a_dim_that_keeps_its_size_may_stay_split(shapes: tuple[Shape, Shape], degree: int) -> None:
    before, after = shapes
    assume(before == after)
    assert [(dim, dim) for dim, size in enumerate(before) if size > 1 and size % degree == 0] == offered(before, after, degree)


def test_heads_fewer_than_ranks_are_not_split() -> None:
    """2 KV heads of 16: splitting the 32 features 4 ways would cut heads in half."""
    assert [(0, 0)] == offered((4, 3, 32), (4, 3, 2, 16), 4)
    assert [(0, 0), (2, 2)] == offered((4, 3, 32), (4, 3, 2, 16), 2)


def test_uneven_heads_are_not_split() -> None:
    """6 heads on 4 ranks."""
    assert [] == offered((3, 48), (3, 6, 8), 4)


def test_the_sequence_is_not_split_under_a_flattened_batch() -> None:
    """(batch, sequence) -> tokens keeps slices of the batch only, unless there is one sample."""
    assert [(0, 0), (2, 1)] == offered((4, 8, 16), (32, 16), 2)
    assert [(1, 0), (2, 1)] == offered((1, 8, 16), (8, 16), 2)
