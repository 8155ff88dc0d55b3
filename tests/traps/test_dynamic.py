"""Trap 13: a branch on data, one token on four ranks, a batch smaller than the mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import run
from planner.errors import InfeasibleError
from tests.traps.cells import MODELS, cells, family, plan

BRANCH = str(MODELS / "branch.py")
LINE = 1 + next(number for number, line in enumerate(Path(BRANCH).read_text().splitlines()) if "if x.sum() > 0" in line)
BECAUSE = "is kept whole, with FLOPs after its parameters, because it reads a value out of a tensor (if, int(), .item(): "
NO_TP = "tp > 1: no rule for opaque in branch: it cannot run inside a tensor parallel region"
DP = "the global batch of 3 is not divisible by {0} data-parallel ranks"


@pytest.mark.parametrize(("target", "where"), [("model", "branch"), ("alone", "the model")])
def test_a_branch_on_data_is_kept_whole_and_its_line_named(target: str, where: str) -> None:
    """The rest is recorded operator by operator."""
    (warning,) = family(f"branch.py:{target}").low.warnings
    assert warning.startswith(f"branch.py:{LINE}: Branch ({where}) {BECAUSE}")


def test_the_modules_around_a_branch_are_recorded() -> None:
    modules = [op.module for op in family("branch.py:model").low.ops if op.target == "aten.addmm.default"]
    assert ["entry", "exit"] == modules


def test_a_branch_on_data_rules_out_tensor_parallelism() -> None:
    with pytest.raises(InfeasibleError) as caught:
        plan("branch.py:model", 2, tp=2)
    assert f"no legal plan for 2 GPUs with --mesh tp=2: {NO_TP}" == str(caught.value)


def test_a_batch_smaller_than_the_mesh_is_refused_or_planned_otherwise() -> None:
    """With data parallelism pinned there is no plan; without, tensor parallelism takes over; where neither is possible, both reasons."""
    with pytest.raises(InfeasibleError) as caught:
        plan("branch.py:plain", 4, dp_shard=4, global_batch=3)
    assert f"no legal plan for 4 GPUs with --mesh dp_shard=4: dp=4: {DP.format(4)}" == str(caught.value)
    assert (4, 1) == (cells(4)["13 three samples"].plan.mesh.tp, cells(4)["13 three samples"].plan.mesh.dp)
    with pytest.raises(InfeasibleError) as caught:
        plan("branch.py:model", 4, global_batch=3)
    assert f"no legal plan for 4 GPUs: {NO_TP}; dp=4: {DP.format(4)}; dp=2: {DP.format(2)}" == str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["branch.py:plain", "--mesh", "dp_shard=4", "--global-batch", "3"], f"dp=4: {DP.format(4)}"),
        (["branch.py:model", "--mesh", "tp=4"], NO_TP),
        (["uneven.py:only_fives", "--mesh", "tp=4", "--global-batch", "1"], "weight dim 5 (column, row) is not divisible by tp 4"),
    ],
)
def test_a_refusal_is_one_line(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, nothing written."""
    target, *others = arguments
    output = tmp_path / "out.json"
    assert 1 == run(["plan", str(MODELS / target), "--gpus", "4", "--cluster", "cpu-gloo", "-o", str(output), *others])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not output.exists()
