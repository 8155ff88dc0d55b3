"""The family of a whole model: equal to recordings of its own at other batch sizes; fixed where it cannot be."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from planner.errors import ModelError, TraceError
from planner.ir.batch import InputInfo
from planner.trace.load import load
from planner.trace.trace import record_at, trace
from tests.trace.small import WIDTH, Block, Stack, source

ZOO = ("gpt", "llama", "moe", "t5", "vit", "resnet", "dit", "lstm_seq2seq", "gcn", "two_tower", "mlp")


@pytest.mark.parametrize("name", ZOO)
def test_a_third_batch_size_is_recorded_as_predicted(name):
    """What two recordings give for batch 7 is what a recording at batch 7 gives: names, shapes, arguments, FLOPs."""
    subject = load(f"benchmarks/models/{name}.py:tiny")
    assert record_at(subject, batch=7) == trace(subject).at(7)


class InBatch(nn.Module):
    """Scores of every sample with every other: work grows with the square of the batch."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.a(x[:, 0])
        return F.softmax(y @ y.transpose(0, 1), -1)


def test_quadratic_work_is_exact():
    subject = source(InBatch)
    assert record_at(subject, batch=5) == trace(subject).at(5)


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.a(x) if x.shape[0] < 3 else F.relu(self.a(x))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.a(x).view(2, 3 * WIDTH)


def test_a_model_that_changes_with_the_batch_is_fixed_with_the_reason():
    family = trace(source(Changing))
    with pytest.raises(TraceError) as error:
        family.at(8)
    assert "the microbatch of small.py is fixed to 2, not 8: aten.mean.default in module '' at batch 2 is aten.relu.default" in str(error.value)


def test_a_model_for_one_batch_size_is_fixed_with_the_line():
    family = trace(source(Small))
    with pytest.raises(TraceError) as error:
        family.at(8)
    message = str(error.value)
    assert message.startswith("the microbatch of small.py is fixed to 2, not 8: at batch 4: test_trace.py:")
    assert "forward fails: RuntimeError: shape '[2, 24]' is invalid for input of size 96" in message


def test_inputs_are_described_for_one_sample():
    def inputs(batch_size):
        return {"tokens": torch.zeros(batch_size, 3, dtype=torch.long), "more": [torch.zeros(batch_size, 3, WIDTH)]}

    class Model(Stack):
        def forward(self, tokens, more):
            return super().forward(more[0]) * tokens.unsqueeze(-1)

    family = trace(source(lambda: Model([Block(0)]), inputs=inputs))
    expected = (InputInfo(("tokens",), (1, 3), "int64"), InputInfo(("more", 0), (1, 3, WIDTH), "float32"))
    assert expected == family.inputs
    assert 3 == family.tokens_per_sample


def test_dtypes_of_the_family():
    family = trace(source(lambda: Stack([Block(0)])), compute_dtype="bfloat16")
    assert ("float32", "bfloat16") == (family.dtype, family.compute_dtype)
    assert "bfloat16" == family.low.by_name[family.low.outputs[0]].dtype
    assert "float32" == trace(source(lambda: Stack([Block(0)]))).compute_dtype


def test_an_unknown_compute_dtype_is_refused():
    with pytest.raises(TraceError, match=r"compute dtype 'float7' is not one of float64, float32"):
        trace(source(lambda: Stack([Block(0)])), compute_dtype="float7")


def test_a_factory_that_fails_is_reported_as_it_is():
    def broken():
        raise ModelError("model.py:3: model() failed: KeyError: 'x'")

    with pytest.raises(ModelError, match=r"model\.py:3: model\(\) failed"):
        trace(source(broken))


def test_a_model_of_405_billion_parameters_is_recorded_without_memory():
    """126 layers are one; parameters are counted, not made."""
    family = trace(load("benchmarks/models/llama.py:llama_405b"), compute_dtype="bfloat16")
    assert [126] == [region.count for region in family.low.regions]
    assert 405_853_388_800 == sum(p.numel * family.low.copies_of(p) for p in family.low.parameters)


def test_lazy_modules_are_refused():
    with pytest.raises(TraceError) as error:
        trace(source(lambda: nn.Sequential(nn.LazyLinear(4))))
    assert "parameter 0.weight has no shape yet; give lazy modules their sizes (nn.Linear in place of nn.LazyLinear)" == str(error.value)
