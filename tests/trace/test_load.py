"""A model file: what it provides, and one line for everything that may be wrong with it."""

import sys

import pytest
import torch
from torch import nn

from planner.errors import ModelError
from planner.trace.load import default_loss, default_weight, load
from planner.trace.trace import trace

GOOD = """
import torch
from torch import nn

def model():
    return nn.Linear(4, 2)

def wide():
    return nn.Linear(4, 8)

def inputs(batch_size):
    return (torch.zeros(batch_size, 4),)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a model file and gives its path; the import path is restored afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def written(text, name="model.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return written


def message(call, *args):
    with pytest.raises(ModelError) as error:
        call(*args)
    text = str(error.value)
    assert 1 == len(text.splitlines())
    return text


def test_a_plain_file_has_default_loss_and_weight(write):
    source = load(write(GOOD))
    assert "model.py" == source.name
    assert isinstance(source.model(), nn.Linear)
    assert (3, 4) == source.inputs(3)[0].shape
    assert (default_loss, default_weight) == (source.loss, source.weight)
    assert 3.0 == source.weight(source.inputs(3))


def test_a_factory_is_named_after_a_colon(write):
    source = load(write(GOOD) + ":wide")
    assert ("model.py:wide", 8) == (source.name, source.model().out_features)


def test_inputs_may_read_the_built_model(write):
    text = GOOD.replace("def inputs(batch_size):", "def inputs(batch_size, model):").replace("batch_size, 4", "batch_size, model.out_features")
    assert (2, 8) == load(write(text) + ":wide").inputs(2)[0].shape


def test_loss_and_weight_of_the_file_are_taken(write):
    source = load(write(GOOD + "\ndef loss(output, batch):\n    return output.sum()\n\ndef weight(batch):\n    return 7.0\n"))
    assert (8.0, 7.0) == (float(source.loss(torch.ones(4, 2), ())), source.weight(()))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (torch.tensor(3.0), 3.0),
        (torch.tensor([1.0, 2.0]), 1.5),
        ({"logits": torch.ones(2), "loss": torch.tensor(5.0)}, 5.0),
        ((torch.tensor([1, 2]), torch.tensor([4.0, 2.0])), 3.0),
    ],
)
def test_default_loss(output, expected):
    """A scalar is the loss, an entry "loss" is, else the mean of the first floating tensor."""
    assert expected == float(default_loss(output, ()))


def test_default_loss_without_floating_output():
    assert "forward returned no floating tensor; define loss(output, batch) in the model file" == message(default_loss, torch.tensor([1]), ())


def test_the_folder_is_appended_to_the_import_path_not_put_first(write, tmp_path):
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')\n")
    source = load(
        write(
            GOOD.replace("nn.Linear(4, 2)", "nn.Linear(4, WIDTH)").replace(
                "import torch\n", "import torch, json\nfrom neighbour import WIDTH\n", 1
            )
        )
    )
    assert 6 == source.model().out_features
    assert str(tmp_path) == sys.path[-1]


def test_missing_file(tmp_path):
    path = tmp_path / "absent.py"
    expected = f"{path} does not exist; give a model.py, model.py:factory or a Hugging Face config.json"
    assert expected == message(load, str(path))
    assert expected == message(load, f"{path}:tiny")


def test_another_kind_of_file(write):
    path = write("x", "model.txt")
    assert f"{path} is neither a Python file nor a config.json" == message(load, path)


def test_syntax_error_names_file_and_line(write):
    assert message(load, write("import torch\n\ndef model(:\n")).startswith("model.py:3: SyntaxError: ")


def test_missing_inputs(write):
    path = write("def model():\n    pass\n")
    assert f"{path} defines no inputs(batch_size); add one that returns a tuple or a dict of forward's arguments" == message(load, path)


def test_unknown_factory_lists_the_others(write):
    path = write(GOOD)
    expected = f"{path} defines no factory 'deep'; factories it defines: model, wide (choose one with model.py:NAME)"
    assert expected == message(load, path + ":deep")


def test_missing_model_lists_the_factories(write):
    path = write(GOOD.replace("def model()", "def other()"))
    assert f"{path} defines no model(); factories it defines: other, wide (choose one with model.py:NAME)" == message(load, path)


def test_a_name_that_is_no_function(write):
    path = write(GOOD + "\nloss = 3\n")
    assert "model.py: loss is int, not a function" == message(load, path)


def test_import_error_and_cycle_name_the_line(write, tmp_path):
    assert "model.py:2: ModuleNotFoundError: No module named 'surely_absent'" == message(load, write("import torch\nimport surely_absent\n"))
    (tmp_path / "left.py").write_text("import right_side\nA = right_side.B\n")
    (tmp_path / "right_side.py").write_text("import left\nB = left.A\n")
    text = message(load, write("import left\n", "cycle.py"))
    assert text.startswith("right_side.py:2: AttributeError: partially initialized module 'left' has no attribute 'A'")


def test_a_file_that_exits_is_reported(write):
    assert "model.py:1: SystemExit: 3" == message(load, write("raise SystemExit(3)\n"))


def test_a_factory_that_raises(write):
    source = load(write(GOOD.replace("return nn.Linear(4, 2)", "return {}['width']")))
    assert "model.py:6: model() failed: KeyError: 'width'" == message(source.model)


def test_a_factory_that_returns_something_else(write):
    source = load(write(GOOD.replace("return nn.Linear(4, 2)", "return 3")))
    assert "model.py: model() returned int, not a torch.nn.Module" == message(source.model)


def test_inputs_that_raise_or_have_the_wrong_type(write):
    raising = load(write(GOOD.replace("return (torch.zeros(batch_size, 4),)", "return 1 / 0")))
    assert "model.py:12: inputs(2) failed: ZeroDivisionError: division by zero" == message(raising.inputs, 2)
    wrong = load(write(GOOD.replace("return (torch.zeros(batch_size, 4),)", "return torch.zeros(1)")))
    assert "model.py: inputs(2) returned Tensor; return a tuple of positional or a dict of keyword arguments" == message(wrong.inputs, 2)
    empty = load(write(GOOD.replace("return (torch.zeros(batch_size, 4),)", "return ()")))
    assert "model.py: inputs(2) holds no tensor" == message(empty.inputs, 2)


@pytest.mark.parametrize("folder", ["planner", "costmodels"])
def test_a_folder_that_hides_ours_is_refused(write, tmp_path, folder):
    (tmp_path / folder).mkdir()
    expected = f"model.py lies beside a folder '{folder}', which hides autopar's own; move the model file to another folder"
    assert expected == message(load, write(GOOD))


def test_forward_that_fails_names_the_line(write):
    text = GOOD + "\nclass Broken(nn.Module):\n    def forward(self, x):\n        return x.nothing\n\ndef broken():\n    return Broken()\n"
    source = load(write(text) + ":broken")
    assert message(trace, source).startswith("model.py:16: forward fails: AttributeError: ")


def test_arguments_that_forward_does_not_take(write):
    source = load(write(GOOD.replace("return (torch.zeros(batch_size, 4),)", "return {'x': torch.zeros(batch_size, 4)}")))
    assert "Linear: forward fails: TypeError: Linear.forward() missing 1 required positional argument: 'input'" == message(trace, source)
