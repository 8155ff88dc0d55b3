"""What the recorder writes down: edges, arguments, FLOPs, saved tensors, origins, functional names."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from planner.errors import TraceError
from planner.ir.graph import TensorArg
from planner.trace.trace import record_at, trace
from tests.trace.small import WIDTH, Block, Stack, source, total_flop


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 16, bias=False)
        self.down = nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


def graph_of(build, **kwargs):
    return record_at(source(build, **kwargs), batch=2)


def ops_named(graph, target):
    return [op for op in (*graph.ops, *graph.backward) if op.target == target]


def test_matmul_flop_is_two_per_multiply_add():
    """Forward 2 m k n per product; backward the same for the weight and, where the input needs it, for the input."""
    graph = graph_of(Two)
    up, down = 2 * 6 * WIDTH * 16, 2 * 6 * 16 * 4
    assert [up, down, down, down, up] == [op.flop for op in ops_named(graph, "aten.mm.default")]


def test_pointwise_operators_count_one_flop_per_element():
    graph = graph_of(Two)
    assert [2 * 3 * 16] == [op.flop for op in ops_named(graph, "aten.relu.default")]


def test_every_input_of_an_op_is_made_before_it_or_comes_from_outside():
    graph = graph_of(lambda: Stack([Block(n) for n in range(3)]))
    known = {*graph.inputs, *(p.tensor for p in graph.parameters), *(b.tensor for b in graph.buffers)}
    for op in (*graph.ops, *graph.backward):
        assert [] == [name for name in op.inputs if name not in known]
        known.update(op.outputs)
    assert graph.loss in known


def test_every_tensor_mentioned_is_described():
    graph = graph_of(lambda: Stack([Block(n) for n in range(3)]))
    mentioned = {name for op in (*graph.ops, *graph.backward) for name in (*op.inputs, *op.outputs, *op.saved)}
    assert set() == mentioned - graph.by_name.keys()
    assert set() == {tensor.base for tensor in graph.tensors} - graph.by_name.keys()


def test_backward_ops_belong_to_the_forward_op_whose_gradient_they_compute():
    graph = graph_of(lambda: Stack([Block(n) for n in range(3)]))
    forward = {op.name: op for op in graph.ops}
    orphans = [op.target for op in graph.backward if op.origin not in forward]
    assert ["aten.ones_like.default"] == orphans
    kinds = {(op.target, forward[op.origin].target) for op in graph.backward if op.origin in forward}
    assert ("aten.gelu_backward.default", "aten.gelu.default") in kinds
    assert ("aten.native_layer_norm_backward.default", "aten.native_layer_norm.default") in kinds
    assert {"aten.addmm.default"} == {origin for target, origin in kinds if target == "aten.mm.default"}


def test_backward_ops_carry_the_module_of_their_origin():
    graph = graph_of(Two)
    assert ["up", "down", "down", "down", "up"] == [op.module for op in ops_named(graph, "aten.mm.default")]


def test_saved_tensors_belong_to_the_op_that_needs_them():
    """A product keeps both factors, relu its result, a sum nothing."""
    graph = graph_of(Gated)
    by_target = {op.target: op for op in graph.ops}
    product, relu, add = by_target["aten.mul.Tensor"], by_target["aten.relu.default"], by_target["aten.add.Tensor"]
    assert set(product.inputs) == set(product.saved)
    assert relu.outputs == relu.saved
    assert () == add.saved


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x + self.bias
        return F.relu(y) * y


class Calls(nn.Module):
    """Calls with defaults left out, keywords, lists and dtypes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = torch.cat([x, x * self.scale], dim=1)
        y = y.to(torch.float64)
        return torch.softmax(y, -1)


def test_arguments_are_positional_with_defaults_filled_in():
    graph = graph_of(Calls)
    by_target = {op.target: op.args for op in graph.ops}
    assert ((TensorArg(0), TensorArg(1)), 1) == by_target["aten.cat.default"]
    assert (TensorArg(0), -1, False) == by_target["aten._softmax.default"]
    assert (TensorArg(0), "float64", None, None, None, False, None) == by_target["aten._to_copy.default"]


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.a(x))
        half = y[:, :1]
        z = torch.zeros_like(y)
        z[:, :1] = half
        z.view(-1).add_(1.0)
        return z * y


def test_in_place_operators_are_written_as_functional_ones():
    """No operator of the graph mutates; a later reader sees the new value, also through another view."""
    graph = graph_of(InPlace)
    targets = [op.target for op in graph.ops]
    assert [] == [target for target in targets if target.rpartition(".")[0].endswith("_")]
    product = ops_named(graph, "aten.mul.Tensor")[0]
    relu = ops_named(graph, "aten.relu.default")[0]
    assert relu.outputs[0] in {graph.by_name[name].base for name in product.inputs} | set(product.inputs)
    sources = ancestors(graph, product.inputs[0])
    assert {"aten.add.Tensor", "aten.as_strided_scatter.default", "aten.copy.default"} <= sources


def ancestors(graph, name):
    op = graph.producer.get(name)
    return set() if op is None else {op.target}.union(*(ancestors(graph, source) for source in op.inputs))


def test_views_name_the_owner_of_their_storage():
    graph = graph_of(Two)
    for op in ops_named(graph, "aten.t.default")[:2]:
        assert op.inputs[0] == graph.by_name[op.outputs[0]].base


def test_batch_norm_counter_is_a_value_of_its_own():
    graph = graph_of(lambda: nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)))
    counter = next(op for op in graph.ops if "1.num_batches_tracked" in op.inputs)
    assert "aten.add.Tensor" == counter.target
    assert "1.num_batches_tracked" not in counter.outputs


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(WIDTH), persistent=False)

    def forward(self, tokens):
        return self.head(self.frozen(self.embedding(tokens)) * self.mask)


def tokens(batch_size):
    return {"tokens": torch.zeros(batch_size, 3, dtype=torch.long)}


def test_ties_frozen_and_unused_parameters_and_buffers_are_listed():
    graph = graph_of(Tied, inputs=tokens)
    listed = {parameter.fqns: parameter.trainable for parameter in graph.parameters}
    assert listed == {
        ("embedding.weight", "head.weight"): True,
        ("unused.weight",): True,
        ("unused.bias",): True,
        ("frozen.weight",): False,
        ("frozen.bias",): False,
    }
    assert [("mask", False)] == [(buffer.fqn, buffer.persistent) for buffer in graph.buffers]
    assert [] == [op for op in graph.ops if "unused.weight" in op.inputs]


def test_tied_rows_name_the_first_parameter():
    family = trace(source(Tied, inputs=tokens))
    assert {"embedding.weight": "embedding.weight", "head.weight": "embedding.weight"} == {
        row.fqn: row.tie for row in family.rows if row.tie == "embedding.weight"
    }


def test_compute_dtype_casts_parameters_and_floating_inputs_but_not_buffers():
    graph = record_at(source(Tied, inputs=tokens), batch=2, compute_dtype="bfloat16")
    weight = graph.parameters[0]
    assert ("float32", "bfloat16") == (weight.dtype, graph.by_name[weight.tensor].dtype)
    assert "float32" == graph.by_name["mask"].dtype
    assert "int64" == graph.by_name[graph.inputs[0]].dtype


class Stray(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.table = torch.ones(WIDTH)

    def forward(self, x):
        return self.a(x) * self.table


def test_tensor_that_is_no_buffer_gets_a_warning():
    graph = graph_of(Stray)
    expected = "table is a tensor but neither a parameter nor a buffer; use register_buffer('table', ..., persistent=False)"
    assert (expected,) == graph.warnings


def test_input_of_a_first_layer_needs_no_gradient():
    graph = graph_of(Two)
    assert not graph.by_name[graph.inputs[0]].requires_grad
    assert graph.by_name[graph.outputs[0]].requires_grad


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, batch: output, "loss(output, batch) returned a tensor of shape (2, 3, 4); return a scalar, for example its mean()"),
        (lambda output, batch: 1.0, "loss(output, batch) returned float, not a tensor; return the scalar mean loss"),
        (
            lambda output, batch: output.detach().mean(),
            "the loss does not depend on any trainable parameter; check requires_grad, detach() and no_grad() in the model",
        ),
    ],
)
def test_unusable_losses_are_refused(loss, message):
    with pytest.raises(TraceError) as error:
        graph_of(Two, loss=loss)
    assert message == str(error.value)


def test_recording_leaves_no_trace_in_the_random_state():
    """Planning draws no random numbers on the user's generator."""
    before = torch.random.get_rng_state()
    graph = graph_of(lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(0.5)), inputs=tokens_of_floats)
    assert total_flop(graph) > 0
    assert torch.equal(before, torch.random.get_rng_state())


def tokens_of_floats(batch_size):
    return (torch.zeros(batch_size, 3, WIDTH),)


class FromNowhere(nn.Module):
    """Reads tensors that no operator makes: a global, an attribute, and the number that torch wraps to fill a slice."""

    TABLE = torch.arange(float(WIDTH))

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)
        self.scale = torch.ones(WIDTH)

    def forward(self, x):
        y = self.map(x) * self.scale + self.TABLE
        y[:, 0] = 0
        return y


def test_tensors_from_nowhere_are_made_where_they_are_read():
    """Every input of an op has a maker, also where the model takes a tensor from outside."""
    graph = graph_of(FromNowhere)
    known = {*graph.inputs, *(p.tensor for p in graph.parameters), *(b.tensor for b in graph.buffers)}
    for op in (*graph.ops, *graph.backward):
        assert [] == [name for name in op.inputs if name not in known]
        known.update(op.outputs)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit.script is deprecated
            self.map = torch.jit.script(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.map(x)


def test_transforms_of_any_length_scale_with_the_batch():
    """FLOPs of a Fourier transform at another batch size follow from two recordings."""

    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(WIDTH, 11)

        def forward(self, x):
            return torch.fft.rfft(self.map(x)).abs()

    family = trace(source(Spectrum))
    assert sum(op.flop for op in family.low.ops) == 2 * sum(op.flop for op in family.at(1).ops)


def test_compiled_modules_are_refused_by_name():
    """A script has no hooks and no Python line; the message says which module it is."""
    with pytest.raises(TraceError, match=r"module map is compiled \(RecursiveScriptModule\); plan the module it was made from"):
        graph_of(Scripted)
