"""Where borders stand, and which of them are dropped."""

import torch
import torch.nn.functional as F
from torch import nn

from planner.ir.graph import Graph, Op, Tensor
from planner.trace.simplify import simplify
from planner.trace.trace import record_at
from tests.trace.small import WIDTH, Block, Stack, borders, source


def graph_of(build, **kwargs):
    return record_at(source(build, **kwargs), batch=2)


def test_each_module_output_has_one_border_named_after_the_innermost_module():
    """`entry` makes the tensor, `Sequential` and the model only hand it on."""
    graph = graph_of(lambda: nn.Sequential(nn.Sequential(nn.Linear(WIDTH, 4))))
    assert [":input[0]", "0.0:output"] == borders(graph)


def test_tensors_of_functional_operators_have_an_input_border():
    graph = graph_of(lambda: Stack([Block(0)]))
    expected = [
        ":input[0]",
        "entry:output",
        "layers.0.norm:output",
        "layers.0.up:output",
        "layers.0.down:input[0]",
        "layers.0.down:output",
        "layers.0:output",
        "head:output",
    ]
    assert expected == borders(graph)


class Nested(nn.Module):
    def forward(self, *, x, scale=None, mask):
        y = x * 2
        return {"logits": y, "past": None, "hidden": (y + 1, mask)}


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.inner = Nested()

    def forward(self, *, x, mask):
        return self.inner(x=x + self.bias, mask=mask)


def test_keyword_inputs_and_nested_outputs_carry_their_path():
    """Integers and None have no border; a model input that reaches a module unchanged is bordered once."""

    def inputs(batch_size):
        return {"x": torch.zeros(batch_size, WIDTH), "mask": torch.zeros(batch_size, dtype=torch.bool)}

    graph = graph_of(Outer, inputs=inputs, loss=lambda output, batch: output["logits"].mean())
    assert [":input['x']", "inner:input['x']", "inner:output['logits']", "inner:output['hidden'][0]"] == borders(graph)
    assert 3 == len(graph.outputs)


class Same(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.attention = Compare()

    def forward(self, x):
        y = x + self.bias
        return self.attention(y, y)


class Compare(nn.Module):
    def forward(self, q, k):
        return q * 2 if q is k else q + k


def test_one_object_given_twice_stays_one_object():
    graph = graph_of(Same)
    assert ["aten.mul.Tensor"] == [op.target for op in graph.ops if op.module == "attention" and op.target != "border"]
    assert [":input[0]", "attention:input[0]", "attention:output"] == borders(graph)


class Residual(nn.Module):
    """The tensor goes through a module and past it."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = x + self.bias
        return y + self.linear(y)


def test_an_input_border_is_seen_inside_the_module_only():
    graph = graph_of(Residual)
    border = next(op for op in graph.ops if op.border == "linear:input[0]")
    last = [op for op in graph.ops if op.target == "aten.add.Tensor"][-1]
    assert border.inputs[0] == last.inputs[0]
    assert {"linear"} == {op.module for op, _ in graph.consumers[border.outputs[0]]}


class Passing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.identity = nn.Identity()

    def forward(self, x):
        y = self.linear(x)
        return self.identity(y) * y


def test_a_module_that_returns_its_input_has_no_output_border():
    graph = graph_of(Passing)
    product = next(op for op in graph.ops if op.target == "aten.mul.Tensor")
    assert product.inputs[0] == product.inputs[1]
    assert [":input[0]", "linear:output", ":output"] == borders(graph)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.shared = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x):
        return self.shared(self.shared(self.entry(x)))


def test_modules_called_twice_have_no_borders():
    """One name cannot say which call is meant."""
    assert [":input[0]", "entry:output", ":output"] == borders(graph_of(Twice))


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(WIDTH))
        self.inner = Compare()
        self.entry = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.inner(self.entry(x), self.table)


def test_buffers_have_no_input_border():
    assert [":input[0]", "entry:output", "inner:output"] == borders(graph_of(Reads))


class Inside(nn.Module):
    def forward(self, x):
        return F.relu_(x)


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.inner = Inside()

    def forward(self, x):
        y = x + self.bias
        self.inner(y)
        return y * 1.0


def test_a_value_written_inside_a_module_is_seen_outside():
    graph = graph_of(Writes)
    product = next(op for op in graph.ops if op.target == "aten.mul.Tensor")
    assert "aten.relu.default" == graph.producer[product.inputs[0]].target


def border(name, source, module, label):
    return Op(name, "border", (source,), (name,), (), module, 0, border=label)


def chain_graph():
    """x -> a:output -> b:output -> loss, with an op that saves b's output."""
    names = ("x", "one", "two", "y")
    use = Op("y", "aten.sum.default", ("two",), ("y",), (), "", 1, saved=("two",))
    return Graph(
        ops=(border("one", "x", "a", "a:output"), border("two", "one", "b", "b:output"), use),
        backward=(Op("g", "aten.expand.default", ("two",), ("g",), (), "", 0, origin="y"),),
        tensors=tuple(Tensor(name, (2,), "float32", name, True) for name in (*names, "g")),
        parameters=(),
        buffers=(),
        inputs=("x",),
        outputs=("two",),
        loss="y",
        batch=2,
    )


def test_simplify_renames_every_mention_of_a_dropped_border():
    graph = simplify(chain_graph())
    assert ["one", "y"] == [op.name for op in graph.ops]
    assert (("one",), ("one",)) == (graph.ops[1].inputs, graph.ops[1].saved)
    assert ("one",) == graph.backward[0].inputs
    assert ("one",) == graph.outputs
    assert "two" not in graph.by_name


def test_simplify_twice_is_simplify_once():
    once = simplify(chain_graph())
    assert once == simplify(once)


def test_simplify_drops_all_borders_of_repeated_modules():
    assert ["y"] == [op.name for op in simplify(chain_graph(), repeated={"a", "b"}).ops]
