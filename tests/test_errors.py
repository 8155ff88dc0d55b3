"""Every mistake a user can make on the command line: one line on stderr that says what to change, exit code 1, no file written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import run
from planner.ir import plan_json
from tests.example_plans import FULL

BODY = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

def inputs(batch_size):
    return (torch.zeros(batch_size, 16),)

def loss(output, batch):
    return (output - batch[0]).square().mean()
"""

MODELS = {
    "good.py": BODY,
    "syntax.py": "def model(:\n",
    "missing_import.py": "\nimport nosuchmodule\n",
    "empty.py": "",
    "no_inputs.py": "def model():\n    return 1\n",
    "not_a_module.py": "def model():\n    return 3\ndef inputs(batch_size):\n    return ()\n",
    "failing.py": "def model():\n    raise RuntimeError('no weights')\ndef inputs(batch_size):\n    return ()\n",
    "vector_loss.py": BODY.replace(".mean()", ".mean(dim=0)"),
    "detached.py": BODY.replace("(output - ", "(output.detach() - "),
    "branching.py": BODY.replace(
        "    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))",
        "    class Branch(nn.Linear):\n        def forward(self, x):\n            return super().forward(x) if x.sum() > 0 else x\n"
        "    return Branch(16, 16)",
    ),
    "listed.py": BODY.replace("return (torch.zeros(batch_size, 16),)", "return 7"),
    "instance.py": BODY.replace("def model():\n    return ", "model = "),
    "leaving.py": BODY.replace("return (output - batch[0]).square().mean()", "raise SystemExit(0)"),
    "wordless.py": "class Wordless(Exception):\n    def __str__(self):\n        raise ValueError\ndef model():\n    raise Wordless\n"
    "def inputs(batch_size):\n    return ()\n",
    "data.txt": "no model",
    "broken.json": "{",
    "other.json": "{}",
}

CLUSTERS = {
    "broken_cluster.json": "{",
    "other_cluster.json": '{"format": "autopar-cluster/9"}',
    "partial_cluster.json": '{"format": "autopar-cluster/1", "devices_per_node": 8}',
}

PLAN = ["plan", "--gpus", "4", "--cluster", "cpu-gloo", "-o", "out.json"]
ERRORS = [
    ([*PLAN, "nowhere.py"], "nowhere.py does not exist; give a model.py"),
    ([*PLAN, "data.txt"], "data.txt is neither a Python file nor a config.json"),
    ([*PLAN, "syntax.py"], "syntax.py:1: SyntaxError"),
    ([*PLAN, "missing_import.py"], "missing_import.py:2: ModuleNotFoundError: No module named 'nosuchmodule'"),
    ([*PLAN, "empty.py"], "empty.py defines no model()"),
    ([*PLAN, "no_inputs.py"], "no_inputs.py defines no inputs(batch_size)"),
    ([*PLAN, "good.py:huge"], "good.py defines no factory 'huge'; factories it defines: model"),
    ([*PLAN, "not_a_module.py"], "model() returned int, not a torch.nn.Module"),
    ([*PLAN, "failing.py"], "failing.py:2: model() failed: RuntimeError: no weights"),
    ([*PLAN, "instance.py"], "instance.py: model is a module, not a function; put it into def model()"),
    ([*PLAN, "leaving.py"], "leaving.py:12: the loss cannot be recorded: SystemExit: 0"),
    ([*PLAN, "wordless.py"], "wordless.py:5: model() failed: Wordless: (its text cannot be read: ValueError)"),
    ([*PLAN, "listed.py"], "return a tuple of positional or a dict of keyword arguments"),
    ([*PLAN, "vector_loss.py"], "loss(output, batch) returned a tensor of shape (16,); return a scalar"),
    ([*PLAN, "detached.py"], "the loss does not depend on any trainable parameter"),
    ([*PLAN, "broken.json"], "broken.json:1:2: not JSON"),
    ([*PLAN, "other.json"], "other.json: no model_type"),
    ([*PLAN, "good.py", "--mesh", "pp=3"], "--mesh pp=3 does not divide 4 GPUs; use one of 1, 2, 4"),
    ([*PLAN, "good.py", "--mesh", "tp=4,dp_shard=2"], "makes 8 ranks, which does not fit 4 GPUs"),
    ([*PLAN, "good.py", "--mesh", "cp=2"], "--mesh cp=2: cp is not planned yet"),
    ([*PLAN, "good.py", "--memory-gib", "0.01"], "the smallest plan needs 0.5 GiB per GPU"),
    ([*PLAN, "good.py", "--gpus", "6"], "6 devices do not fill nodes of 4; use 4 or 8 devices"),
    ([*PLAN, "good.py", "--gpus", "4", "--gpus-per-node", "8"], "4 devices are fewer than the 8 of one node"),
    ([*PLAN, "good.py", "--cluster", "h101"], "cluster 'h101' is neither a preset (a100-40g, a100-80g,"),
    ([*PLAN, "good.py", "--cluster", "nowhere.json"], "nowhere.json: cannot be read"),
    ([*PLAN, "good.py", "--cluster", "broken_cluster.json"], "broken_cluster.json: line 1 is not JSON"),
    ([*PLAN, "good.py", "--cluster", "other_cluster.json"], "other_cluster.json: format must be 'autopar-cluster/1'"),
    ([*PLAN, "good.py", "--cluster", "partial_cluster.json"], "partial_cluster.json: "),
    ([*PLAN[:-1], "folder/none/out.json", "good.py"], "cannot write folder/none/out.json: there is no folder"),
    ([*PLAN[:-1], ".", "good.py"], "cannot write .: it is a folder"),
    ([*PLAN[:-1], "good.py", "good.py"], "-o good.py would replace good.py, which is read for the plan; choose another name"),
    ([*PLAN[:-1], "x" * 300, "good.py"], "File name too long"),
    ([*PLAN[:-1], "a\0b", "good.py"], "cannot write 'a\\x00b': embedded null byte"),
    (["explain", "a\0b"], "cannot read 'a\\x00b': embedded null byte"),
    (["explain", "/dev/zero"], "/dev/zero: longer than 16,777,216 characters; no plan is"),
    (["explain", "nowhere.json"], "cannot read nowhere.json: No such file or directory"),
    (["explain", "good.py"], "good.py: line 2, column 1: this is not JSON"),
    (["explain", "other.json"], "other.json: format: expected 'autopar-plan/1', found None"),
    (["explain", "cut.json"], "this is not JSON"),
    (["explain", "wrong.json"], "wrong.json: mesh.tp: expected an integer, found a string"),
    (["diff", "plan.json", "wrong.json"], "wrong.json: mesh.tp: expected an integer, found a string"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with good and bad files of every kind, where the command runs."""
    text = plan_json.write(FULL)
    wrong = json.loads(text)
    wrong["mesh"]["tp"] = "4"
    plans = {"plan.json": text, "cut.json": text[:1000], "wrong.json": json.dumps(wrong)}
    for name, content in (MODELS | CLUSTERS | plans).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_mistake_is_one_line(arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message is there, in one line that begins with `error: `, and nothing was written."""
    before = sorted(folder.iterdir())
    assert 1 == run(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert 1 == len(lines)
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert before == [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"]


def test_untraceable_line_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A branch on data is planned with the module kept whole, and a warning that names the line of the user's file."""
    assert 0 == run([*PLAN, "branching.py"])
    assert capsys.readouterr().err.startswith("warning: branching.py:8: Branch (the model) is kept whole")
