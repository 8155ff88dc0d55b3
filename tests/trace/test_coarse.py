"""What cannot be recorded is kept whole, with a warning that names the line; what is wrong is an error that names it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from planner.errors import TraceError
from planner.ir.family import coverage
from planner.trace.trace import record_at, trace
from tests.trace.small import WIDTH, Block, Stack, source


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if x.sum() > 0:  # LINE branch
            return self.linear(x)
        return x


class Routed(nn.Module):
    """Experts picked by nonzero, as models write it in eager mode."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        choice = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero(as_tuple=True)  # LINE nonzero
            out[rows] = expert(x[rows])
        return out


class Heavy(nn.Module):
    """Too large to be run for real; its outputs are taken to look like its input."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.empty(2**27))

    def forward(self, x):
        return x * float(x.sum())  # LINE heavy


class Reshaping(Heavy):
    """Its outputs do not look like its input, so the module around it is kept whole instead."""

    def forward(self, x):
        return x.flatten(1)[:, : int(x.sum().item()) * 0 + 4]  # LINE reshaping


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        return F.pad(self.out(self.inner(x)).unsqueeze(1).expand(-1, 3, -1), (0, WIDTH - 4))


def line(name):
    with open(__file__) as file:
        number = next(number for number, text in enumerate(file, 1) if text.rstrip().endswith(f"# LINE {name}"))
    return f"test_coarse.py:{number}"


def stack(build, count=2):
    return lambda: Stack([build() for _ in range(count)])


def test_a_branch_on_data_keeps_the_smallest_module_whole():
    graph = record_at(source(stack(Branch)), batch=2)
    expected = (
        f"{line('branch')}: Branch (layers.0 and 1 more) is kept whole, with FLOPs after its parameters, because it reads a value out of a "
        "tensor (if, int(), .item(): aten._local_scalar_dense.default)"
    )
    assert (expected,) == graph.warnings
    assert ["opaque"] == [op.target for op in graph.ops if op.module.startswith("layers.0") and op.target != "border"]
    assert ["layers.*"] == [region.glob for region in graph.regions]


def test_an_opaque_module_counts_two_flop_per_parameter_and_row_and_backward_twice_that():
    graph = record_at(source(stack(Branch)), batch=2)
    expected = 2 * (WIDTH * WIDTH + WIDTH) * 2 * 3
    assert [expected, 2 * expected] == [op.flop for op in (*graph.ops, *graph.backward) if op.target.startswith("opaque")]
    assert {"opaque": 1, "opaque_backward": 1} == dict(graph.unmodelled)
    assert 0 < coverage(graph) < 1


def test_gradients_flow_through_an_opaque_module_to_its_parameters():
    graph = record_at(source(stack(Branch, 1)), batch=2)
    (backward,) = (op for op in graph.backward if op.target == "opaque_backward")
    shapes = [graph.by_name[name].shape for name in backward.outputs]
    assert [(2, 3, WIDTH), (WIDTH, WIDTH), (WIDTH,)] == shapes
    assert "opaque_0" == backward.origin
    (forward,) = (op for op in graph.ops if op.target == "opaque")
    assert set(forward.inputs) == set(forward.saved)


def test_shapes_that_depend_on_data_keep_the_module_whole():
    graph = record_at(source(stack(Routed, 1)), batch=2)
    expected = (
        f"{line('nonzero')}: Routed (layers.0) is kept whole, with FLOPs after its parameters, because the shape of a result depends on data"
    )
    assert [True] == [warning.startswith(expected) for warning in graph.warnings]


def test_a_large_module_is_taken_to_return_what_looks_like_its_input():
    graph = record_at(source(stack(Heavy, 1)), batch=2)
    (opaque,) = (op for op in graph.ops if op.target == "opaque")
    assert (2, 3, WIDTH) == graph.by_name[opaque.outputs[0]].shape
    assert [True] == [warning.startswith(f"{line('heavy')}: Heavy (layers.0) is kept whole") for warning in graph.warnings]


def test_a_wrong_guess_makes_the_module_around_it_whole():
    graph = record_at(source(lambda: Stack([Around(Reshaping())])), batch=2)
    assert ["opaque"] == [op.target for op in graph.ops if op.module.startswith("layers.0") and op.target != "border"]
    assert [line("reshaping")] == [warning.split(": ")[0] for warning in graph.warnings[:1]]


def test_both_recordings_are_equally_coarse():
    """A branch taken at the second batch size only makes both coarse, so the batch stays free."""

    class Late(Branch):
        def forward(self, x):
            return super().forward(x) if x.shape[0] > 3 else self.linear(x)

    family = trace(source(stack(Late, 1)))
    assert "" == family.fixed
    assert family.at(8).batch == 8


class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH + 1, WIDTH)

    def forward(self, x):
        return self.linear(x)  # LINE wrong


def test_a_mistake_in_the_model_is_an_error_not_a_coarser_graph(caplog):
    with pytest.raises(TraceError) as error:
        record_at(source(stack(Wrong)), batch=2)
    text = str(error.value)
    assert text.startswith(f"{line('wrong')}: forward fails: RuntimeError: ")
    assert 1 == len(text.splitlines())
    assert "" == caplog.text


class Large(Heavy):
    def forward(self, x):
        return int(x.sum().item())  # LINE root


def test_a_model_that_cannot_even_be_kept_whole_is_an_error():
    with pytest.raises(TraceError) as error:
        record_at(source(Large), batch=2)
    expected = (
        f"{line('root')}: the training step cannot be recorded: it reads a value out of a tensor (if, int(), .item(): "
        "aten._local_scalar_dense.default)"
    )
    assert expected == str(error.value)


def test_a_loss_that_reads_values_is_an_error():
    def loss(output, batch):
        return output.mean() * float(output.sum())  # LINE loss

    with pytest.raises(TraceError) as error:
        record_at(source(lambda: Stack([Block(0)]), loss=loss), batch=2)
    assert str(error.value).startswith(f"{line('loss')}: the loss cannot be recorded: it reads a value out of a tensor")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * float(grad.sum())  # LINE backward


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Doubled.apply(self.linear(x))


def test_a_backward_that_reads_values_is_an_error():
    with pytest.raises(TraceError) as error:
        record_at(source(Custom), batch=2)
    assert str(error.value).startswith(f"{line('backward')}: the backward pass cannot be recorded: it reads a value out of a tensor")
