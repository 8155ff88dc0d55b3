"""FLOPs against counts of their own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from planner.trace.trace import record_at
from tests.trace.small import WIDTH, source


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q * self.scale, k * self.scale, v * self.scale, is_causal=self.causal)


def heads(batch_size):
    return tuple(torch.zeros(batch_size, 2, length, 4) for length in (6, 10, 10))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_two_products_forward_and_five_backward(causal):
    """Masks do not reduce the count."""
    graph = record_at(source(lambda: Attention(causal), inputs=heads), batch=3)
    product = 2 * 3 * 2 * 6 * 10 * 4
    flop = {op.target: op.flop for op in (*graph.ops, *graph.backward)}
    assert 2 * product == flop["aten._scaled_dot_product_flash_attention_for_cpu.default"]
    assert 5 * product == flop["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"]


def test_convolution_counts_its_products():
    graph = record_at(source(lambda: nn.Conv1d(3, 5, 3, bias=False)), batch=2)
    forward = 2 * 2 * 5 * (WIDTH - 2) * 3 * 3
    flop = [op.flop for op in (*graph.ops, *graph.backward) if "convolution" in op.target]
    assert [forward, forward] == flop


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, 16, 32, dtype=torch.bfloat16))
        self.register_buffer("ends", torch.tensor([8, 16], dtype=torch.int32))

    def forward(self, x):
        return torch._grouped_mm(x, self.weight, offs=self.ends)


def test_grouped_product_counts_every_row_once():
    """Rows times inner times columns, whatever expert a row belongs to; the weight's gradient costs the same."""
    subject = source(Grouped, inputs=lambda batch_size: (torch.zeros(8 * batch_size, 16, dtype=torch.bfloat16),))
    graph = record_at(subject, batch=2)
    flop = [op.flop for op in (*graph.ops, *graph.backward) if "_grouped_mm" in op.target]
    assert [2 * 16 * 16 * 32, 2 * 16 * 16 * 32] == flop
    assert () == graph.unmodelled


def test_indexing_and_copies_cost_nothing_and_sums_into_a_table_do():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, WIDTH)

        def forward(self, tokens):
            return self.table(tokens).transpose(0, 1).contiguous()

    graph = record_at(source(Lookup, inputs=lambda batch_size: (torch.zeros(batch_size, 3, dtype=torch.long),)), batch=2)
    flop = {op.target: op.flop for op in (*graph.ops, *graph.backward)}
    assert (0, 0) == (flop["aten.embedding.default"], flop["aten.clone.default"])
    assert 2 * 3 * WIDTH == flop["aten.embedding_dense_backward.default"]


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return torch.linalg.inv(self.linear(x))


def test_an_operator_without_a_formula_is_reported_and_counted_by_element():
    graph = record_at(source(Unknown), batch=2)
    assert ("aten.linalg_inv_ex.default", 1) in graph.unmodelled
    (op,) = (op for op in graph.ops if op.target == "aten.linalg_inv_ex.default")
    assert 2 * 9 + 2 == op.flop


@pytest.mark.parametrize(
    ("kind", "gates", "target"),
    [(nn.LSTM, 4, "lstm"), (nn.GRU, 3, "gru"), (nn.RNN, 1, "rnn")],
)
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_is_one_operator_with_the_products_of_its_gates(kind, gates, target, directions):
    """Two layers; the second reads all directions of the first. Backward counts twice forward."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = kind(WIDTH, 5, 2, batch_first=True, bidirectional=directions == 2)

        def forward(self, x):
            return self.rnn(x)[0]

    graph = record_at(source(Model), batch=2)
    expected = 2 * 3 * directions * sum(2 * gates * 5 * (size + 5) for size in (WIDTH, 5 * directions))
    assert [expected] == [op.flop for op in graph.ops if op.target == target]
    assert [2 * expected] == [op.flop for op in graph.backward if op.target == f"{target}_backward"]
    assert (2, 3, 5 * directions) == graph.by_name[graph.outputs[0]].shape
    assert () == graph.unmodelled


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_outputs_have_the_shapes_that_torch_gives(kind, batch_first):
    module = kind(WIDTH, 5, 2, batch_first=batch_first, bidirectional=True)
    x = torch.zeros(4, 3, WIDTH)
    output, state = module(x)
    real = [output.shape, *(part.shape for part in (state if kind is nn.LSTM else (state,)))]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = module

        def forward(self, x):
            return self.rnn(x)

    graph = record_at(source(Model, inputs=lambda batch_size: (x,), loss=lambda output, batch: output[0].mean()), batch=4)
    assert [tuple(shape) for shape in real] == [graph.by_name[name].shape for name in graph.outputs]
