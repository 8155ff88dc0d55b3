"""Graphs print and parse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.ir.graph import Buffer, Graph, Op, Parameter, Region, Tensor, TensorArg
from planner.ir.graph_text import graph_text, parse_graph

names = st.text(max_size=6)
many = st.lists(names, max_size=3).map(tuple)
shapes = st.lists(st.integers(0, 10**6), max_size=3).map(tuple)
scalars = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), names, st.integers(0, 9).map(TensorArg))
arguments = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


def tuples(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=2).map(tuple)


ops = st.builds(Op, names, names, many, many, tuples(arguments), names, st.integers(0), many, names, names)
graphs = st.builds(
    Graph,
    ops=tuples(ops),
    backward=tuples(ops),
    tensors=tuples(st.builds(Tensor, names, shapes, names, names, st.booleans())),
    parameters=tuples(st.builds(Parameter, names, many, shapes, names, st.booleans())),
    buffers=tuples(st.builds(Buffer, names, names, shapes, names, st.booleans())),
    inputs=many,
    outputs=many,
    loss=names,
    batch=st.integers(1, 9),
    regions=tuples(st.builds(Region, names, many, many, tuples(st.tuples(names, names)))),
    unmodelled=tuples(st.tuples(names, st.integers(0, 9))),
    warnings=many,
)

LINEAR = Graph(
    ops=(
        Op("t", "aten.t.default", ("w",), ("w_t",), (TensorArg(0),), "linear", 0),
        Op("mm", "aten.mm.default", ("x", "w_t"), ("y",), (TensorArg(0), TensorArg(1)), "linear", 512, saved=("x",)),
        Op("mask", "aten.masked_fill.Scalar", ("y", "m"), ("z",), (TensorArg(0), TensorArg(1), -math.inf), "", 16),
        Op("sum", "aten.sum.dim_IntList", ("z",), ("loss",), (TensorArg(0), (0, -1), False, None), "", 16),
    ),
    backward=(Op("mm_w", "aten.mm.default", ("g", "x"), ("w_g",), (TensorArg(0), TensorArg(1)), "linear", 512, origin="mm"),),
    tensors=(Tensor("x", (2, 16), "float32", "x", False), Tensor("w_t", (16, 8), "float32", "w", True)),
    parameters=(Parameter("w", ("linear.weight", "head.weight"), (8, 16), "float32", True),),
    buffers=(Buffer("m", "mask", (2, 8), "bool", False),),
    inputs=("x",),
    outputs=("y",),
    loss="loss",
    batch=2,
    regions=(Region("layers.*", ("layers.0", "layers.1"), ("mm",), (("x", "y"),)),),
    unmodelled=(("aten.cumsum.default", 3),),
    warnings=("scale is a tensor but neither a parameter nor a buffer",),
)


@given(graphs)
@settings(max_examples=60)
def test_parsing_inverts_printing(graph: Graph) -> None:
    """parse(text(g)) == g, whatever the names and arguments are, one record per line."""
    text = graph_text(graph)
    assert graph == parse_graph(text)
    assert text.count("\n") == len(text.splitlines())


def test_text(golden: Callable[[str, str], None]) -> None:
    """A graph with one of everything."""
    golden("graph_linear.txt", graph_text(LINEAR))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tensor('x'", "line 2 is no record of a graph"),
        ("tensors('x')", "line 2 is no record of a graph"),
        ("tensor('x', (2,), 'float32')", "line 2 is no record of a graph"),
        ("tensor('x', (2,), open('f'), base='x', requires_grad=True)", "open('f') is neither a number, a text, a tuple nor T0"),
        ("3", "expected word(...)"),
    ],
)
def test_other_lines_are_refused(line: str, message: str) -> None:
    """The error names the line; nothing is evaluated."""
    with pytest.raises(PlanError, match=re.escape(message)):
        parse_graph(f"graph(batch=2, loss='l', inputs=(), outputs=())\n{line}\n")


def test_a_graph_needs_its_head() -> None:
    """Without the first line there is no batch, loss, inputs or outputs."""
    with pytest.raises(PlanError, match="the line graph"):
        parse_graph("warning('nothing else')\n")
