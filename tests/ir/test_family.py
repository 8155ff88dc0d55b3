"""A graph at any batch size, from recordings at two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import TraceError
from planner.ir.family import GraphFamily, coverage, flop_per_sample, structural_difference, value_at
from planner.ir.graph import Graph, Op, Region, Tensor, TensorArg

BATCHES = st.tuples(st.integers(1, 8), st.integers(1, 8)).filter(lambda pair: pair[0] < pair[1])


@given(slope=st.integers(0, 50), constant=st.integers(0, 50), batches=BATCHES, batch=st.integers(1, 64))
def test_affine_values_are_reproduced(slope, constant, batches, batch):
    """b -> slope b + constant, where no power of b fits the two values as well."""
    low, high = (slope * b + constant for b in batches)
    powers = [high * batches[0] ** k == low * batches[1] ** k for k in (2, 3)]
    if not any(powers):
        assert slope * batch + constant == value_at(low, high, batches=batches, batch=batch)


@given(factor=st.integers(1, 50), degree=st.integers(0, 3), batches=BATCHES, batch=st.integers(1, 64))
def test_powers_of_the_batch_are_reproduced(factor, degree, batches, batch):
    low, high = (factor * b**degree for b in batches)
    assert factor * batch**degree == value_at(low, high, batches=batches, batch=batch)


def test_a_value_that_would_not_be_whole_is_refused():
    """Half the batch is a dim at even batches only."""
    assert 8 == value_at(1, 2, batches=(2, 4), batch=16)
    with pytest.raises(TraceError) as error:
        value_at(1, 2, batches=(2, 4), batch=3)
    assert "a dim would be 3/2 at microbatch 3; choose another microbatch size" == str(error.value)


def graph(batch, *, target="aten.view.default", flop=None, regions=()):
    shape = (batch, 5)
    op = Op("y", target, ("x",), ("y",), (TensorArg(0), (batch * 5, -1), True, 2.0), "layers.0", 7 * batch if flop is None else flop)
    back = Op("g", "aten.expand.default", ("y",), ("g",), (TensorArg(0), shape), "layers.0", 3 * batch, origin="y")
    return Graph(
        ops=(op,),
        backward=(back,),
        tensors=tuple(Tensor(name, shape, dtype, name, False) for name, dtype in (("x", "int64"), ("y", "float32"), ("g", "float32"))),
        parameters=(),
        buffers=(),
        inputs=("x",),
        outputs=("y",),
        loss="y",
        batch=batch,
        regions=regions,
    )


def family(low, high, fixed=""):
    return GraphFamily("m", low, high, (), (), "float32", "float32", fixed)


@given(batch=st.integers(1, 100))
def test_shapes_arguments_and_flop_follow_the_batch(batch):
    assert graph(batch) == family(graph(2), graph(4)).at(batch)


def test_a_fixed_family_gives_its_own_batch_only():
    only = family(graph(2), None, "operators differ")
    assert graph(2) == only.at(2)
    with pytest.raises(TraceError) as error:
        only.at(4)
    assert "the microbatch of m is fixed to 2, not 4: operators differ" == str(error.value)


def test_structural_difference_names_the_first_operator_that_differs():
    assert "" == structural_difference(graph(2), graph(4))
    expected = "aten.view.default in module 'layers.0' at batch 2 is aten.t.default at batch 4"
    assert expected == structural_difference(graph(2), graph(4, target="aten.t.default"))


def test_tokens_per_sample_counts_integer_inputs():
    assert 5 == family(graph(2), graph(4)).tokens_per_sample


def test_flop_per_sample_counts_every_copy():
    region = Region("layers.*", ("layers.0", "layers.1", "layers.2"), ("y",), ())
    assert 10 == flop_per_sample(graph(2))
    assert 30 == flop_per_sample(graph(2, regions=(region,)))


def test_coverage_is_the_share_of_flop_with_a_formula():
    known = graph(2, flop=30)
    assert 1.0 == coverage(known)
    unknown = Graph(**{**{f: getattr(known, f) for f in known.__dataclass_fields__}, "unmodelled": (("aten.view.default", 1),)})
    assert 6 / 36 == coverage(unknown)
