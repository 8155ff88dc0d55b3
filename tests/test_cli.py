"""The command line: what goes where, exit codes, and what starts without torch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click import BadParameter

from planner.cli.machine import Found, choose, nearest
from planner.cli.main import run
from planner.cli.mesh_degrees import MeshDegrees
from planner.cli.precision import compute_dtype
from planner.ir import plan_json
from tests.example_plans import FULL, PLAIN

SMALL_MODEL = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

def inputs(batch_size):
    return (torch.zeros(batch_size, 16),)

def loss(output, batch):
    return (output - batch[0]).square().mean()
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    plan_json.save(FULL, path)
    return path


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(SMALL_MODEL, encoding="utf-8")
    return path


def test_explain_needs_no_torch_and_no_solver(plan_file: Path) -> None:
    """`autopar explain` in a fresh process loads neither torch nor ortools nor numpy, and says what the plan is."""
    program = (
        "import sys; from planner.cli.main import run; code = run(sys.argv[1:]);"
        "print(sorted({'torch', 'ortools', 'numpy', 'transformers', 'networkx'} & set(sys.modules)), code)"
    )
    done = subprocess.run([sys.executable, "-c", program, "explain", str(plan_file)], capture_output=True, text=True, check=True)
    assert "[] 0" == done.stdout.splitlines()[-1]
    assert "llama_8b" in done.stdout
    assert "" == done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["explain", "--help"], ["diff", "--help"], ["--version"]], ids=" ".join)
def test_help_needs_no_torch(arguments: list[str]) -> None:
    """Help and version load no torch."""
    program = "import sys; from planner.cli.main import run; code = run(sys.argv[1:]); print('torch' in sys.modules, code)"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert "False 0" == done.stdout.splitlines()[-1]


def test_module_is_the_console_script(plan_file: Path) -> None:
    """`python -m autopar` does what `autopar` does."""
    done = subprocess.run([sys.executable, "-m", "autopar", "explain", str(plan_file), "--json"], capture_output=True, text=True, check=True)
    assert plan_json.write(FULL) == done.stdout


def test_explain_json_is_the_file(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain --json` prints the plan file's own bytes."""
    assert 0 == run(["explain", str(plan_file), "--json"])
    assert plan_file.read_text(encoding="utf-8") == capsys.readouterr().out


def test_diff_shows_what_differs(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`autopar diff` names entries of both files."""
    other = tmp_path / "other.json"
    plan_json.save(PLAIN, other)
    assert 0 == run(["diff", str(plan_file), str(other)])
    assert "mesh.tp" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["plan"],
        ["plan", "model.py"],
        ["plan", "model.py", "--gpus", "0"],
        ["plan", "model.py", "--gpus", "8", "--mesh", "xp=2"],
        ["plan", "model.py", "--gpus", "8", "--memory-gib", "0"],
        ["plan", "model.py", "--gpus", "8", "--memory-gib", "nan"],
        ["plan", "model.py", "--gpus", "8", "--memory-gib", "inf"],
        ["plan", "model.py", "--gpus", "8", "--max-seconds", "nan"],
        ["plan", "model.py", "--gpus", "99999999999"],
        ["plan", "model.py", "--gpus", "8", "--global-batch", "99999999999"],
        ["plan", "model.py", "--gpus", "8", "--recompute", "some"],
        ["explain"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage: exit code 2, the usage on stderr, nothing on stdout."""
    assert 2 == run(arguments)
    captured = capsys.readouterr()
    assert "" == captured.out
    assert "Usage: autopar" in captured.err


def test_plan_writes_what_it_prints(model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` names the machine first, prints tables, and writes a file that `explain` shows the same way."""
    output = tmp_path / "small.json"
    assert 0 == run(["plan", str(model_file), "--gpus", "2", "--cluster", "cpu-gloo", "-o", str(output)])
    planned = capsys.readouterr()
    assert 0 == run(["explain", str(output)])
    explained = capsys.readouterr().out
    assert "planning for 2 x cpu-gloo, 2 per node (as asked)\n" + explained + f"\nwrote {output}\n" == planned.out
    assert "" == planned.err


def test_plan_json_is_the_file(model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan --json` prints exactly the file on stdout; the machine goes to stderr."""
    output = tmp_path / "small.json"
    assert 0 == run(["plan", str(model_file), "--gpus", "2", "--cluster", "cpu-gloo", "-o", str(output), "--json"])
    captured = capsys.readouterr()
    assert output.read_text(encoding="utf-8") == captured.out
    assert f"planning for 2 x cpu-gloo, 2 per node (as asked)\nwrote {output}\n" == captured.err


def test_prints_of_the_model_stay_out_of_the_result(model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user's code prints goes to stderr, so that stdout holds JSON and nothing else."""
    model_file.write_text(SMALL_MODEL + "\nprint('hello from the model file')\n", encoding="utf-8")
    output = tmp_path / "small.json"
    assert 0 == run(["plan", str(model_file), "--gpus", "2", "--cluster", "cpu-gloo", "-o", str(output), "--json"])
    captured = capsys.readouterr()
    assert output.read_text(encoding="utf-8") == captured.out
    assert "hello from the model file" in captured.err


def test_same_input_same_bytes(model_file: Path, tmp_path: Path) -> None:
    """Two runs write the same file but for `provenance`."""
    texts = []
    for name in ("one.json", "two.json"):
        assert 0 == run(["plan", str(model_file), "--gpus", "2", "--cluster", "cpu-gloo", "-o", str(tmp_path / name)])
        document = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        del document["provenance"]
        texts.append(json.dumps(document))
    assert texts[0] == texts[1]


def test_options_reach_the_plan(model_file: Path, tmp_path: Path) -> None:
    """Degrees, batch, memory and recompute that were asked for are in the plan."""
    output = tmp_path / "small.json"
    options = ["--mesh", "dp_replicate=2", "--global-batch", "12", "--memory-gib", "2", "--recompute", "none"]
    assert 0 == run(["plan", str(model_file), "--gpus", "2", "--cluster", "cpu-gloo", "-o", str(output), *options])
    plan = plan_json.load(output)
    assert (2, 12, 2 * 2**30, "none") == (
        plan.mesh.dp_replicate,
        plan.schedule.global_batch,
        plan.constraints.memory_bytes,
        plan.constraints.recompute,
    )


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while planning: exit code 130, one line, no file, no part of one."""
    model = tmp_path / "model.py"
    model.write_text(
        "import time\ndef model():\n    print('building', flush=True)\n    time.sleep(120)\ndef inputs(batch_size):\n    return ()\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "autopar", "plan", str(model), "--gpus", "2", "--cluster", "cpu-gloo", "-o", str(tmp_path / "plan.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "building\n" in iter(process.stderr.readline, "")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (130, "interrupted; nothing was written") == (process.returncode, error.strip())
    assert [model] == sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__")


def test_assumed_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs and without --cluster h100 is assumed, and the line says so."""
    monkeypatch.setattr("planner.cli.machine.gpus_here", lambda: None)
    expected = "planning for 16 x h100, 8 per node (assumed, as this machine has no GPU; --cluster names another)"
    assert expected == str(choose(None, gpus=16, gpus_per_node=None))


def test_gpus_here_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs of this machine choose the preset, and their number the size of a node."""
    monkeypatch.setattr("planner.cli.machine.gpus_here", lambda: Found("NVIDIA A100-SXM4-40GB", 40 * 2**30, 4))
    expected = "planning for 16 x a100-40g, 4 per node (the nearest preset to the 4 x NVIDIA A100-SXM4-40GB here)"
    assert expected == str(choose(None, gpus=16, gpus_per_node=None))


@pytest.mark.parametrize(
    ("preset", "name", "gib"),
    [
        ("a100-80g", "NVIDIA A100-SXM4-80GB", 80),
        ("h100", "NVIDIA H100 80GB HBM3", 80),
        ("h200", "NVIDIA H200", 141),
        ("gb200", "NVIDIA GB200", 186),
        ("v100", "Tesla V100-SXM2-32GB", 32),
        ("v100", "NVIDIA GeForce RTX 4090", 24),
    ],
)
def test_nearest_preset(preset: str, name: str, gib: int) -> None:
    """The make in the device's name decides, then memory."""
    assert preset == nearest(Found(name, gib * 2**30, 8)).name


def test_mesh_degrees() -> None:
    """`pp=2,tp=4` in any order gives pairs sorted by axis."""
    assert (("pp", 2), ("tp", 4)) == MeshDegrees().convert(" tp=4, pp=2", None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "the degree in 'tp' is not a whole number of at least 1"),
        ("tp=0", "the degree in 'tp=0' is not a whole number of at least 1"),
        ("tp=2.5", "the degree in 'tp=2.5' is not a whole number of at least 1"),
        ("dp=2", "'dp=2' names no mesh axis; use pp, dp_replicate, dp_shard, tp, as in pp=2,tp=2"),
        ("tp=2,tp=4", "axis tp is given twice"),
        ("", "'' names no mesh axis"),
    ],
)
def test_wrong_mesh_degrees(text: str, message: str) -> None:
    """Each mistake is named."""
    with pytest.raises(BadParameter) as caught:
        MeshDegrees().convert(text, None, None)
    assert message in caught.value.message


def test_provenance_says_where_a_plan_comes_from(model_file: Path, tmp_path: Path) -> None:
    """Versions, the model's file and seconds of every phase."""
    output = tmp_path / "small.json"
    assert 0 == run(["plan", str(model_file), "--gpus", "2", "--cluster", "cpu-gloo", "-o", str(output)])
    provenance = dict(plan_json.load(output).provenance)
    assert {"autopar", "torch", "target", "trace_s", "search_s"} <= provenance.keys()
    assert str(model_file) == provenance["target"]


def test_warnings_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor that is neither parameter nor buffer is planned, with a warning that says what to do."""
    model = tmp_path / "model.py"
    text = SMALL_MODEL.replace("    return nn.Sequential", "    made = nn.Sequential").replace(
        "\n\ndef inputs", "\n    made.scale = torch.ones(1)\n    return made\n\ndef inputs"
    )
    model.write_text(text, encoding="utf-8")
    assert 0 == run(["plan", str(model), "--gpus", "1", "--cluster", "cpu-gloo", "-o", str(tmp_path / "plan.json")])
    assert "warning: scale is a tensor but neither a parameter nor a buffer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("precision", "stored", "backend", "dtype"),
    [
        ("auto", "float32", "nccl", "bfloat16"),
        ("auto", "float16", "nccl", None),
        ("auto", "float32", "gloo", None),
        ("model", "float32", "nccl", None),
        ("bf16", "float32", "gloo", "bfloat16"),
        ("fp16", "bfloat16", "nccl", "float16"),
    ],
)
def test_precision(precision: str, stored: str, backend: str, dtype: str | None) -> None:
    """bf16 for float32 models on GPUs, the model's own dtype elsewhere, and what was asked for."""
    assert dtype == compute_dtype(precision, stored=stored, backend=backend)


def test_precision_of_a_plan(model_file: Path, tmp_path: Path) -> None:
    """On GPUs a float32 model computes in bfloat16 and reduces gradients in float32."""
    output = tmp_path / "small.json"
    assert 0 == run(["plan", str(model_file), "--gpus", "8", "--cluster", "h100", "-o", str(output)])
    model = plan_json.load(output).model
    assert ("float32", "bfloat16", "float32") == (model.dtype, model.compute_dtype, model.reduce_dtype)
