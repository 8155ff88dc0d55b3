"""The example trainer: the loss falls, a resumed run goes on, a mistake is one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.models import gpt
from planner.ir import plan_json
from planner.ir.mesh import Mesh
from tests.runtime.plans import make_plan

ROOT = Path(__file__).parents[2]


def train(plan: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """One process; it needs no torchrun."""
    command = [sys.executable, "-m", "benchmarks.train", str(plan), "benchmarks/models/gpt.py:tiny", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def losses(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"^step \d+: loss ([\d.]+)", output, re.MULTILINE)]


@pytest.mark.distributed
def test_a_run_learns_and_goes_on(tmp_path: Path) -> None:
    """Text is predictable, so the loss falls; the second half of a stopped run is that of one which was not."""
    plan = tmp_path / "plan.json"
    plan_json.save(make_plan(gpt.tiny(), gpt, mesh=Mesh(), microbatches=2, global_batch=16), plan)
    whole = losses(train(plan, "--steps", "12", "--checkpoint", str(tmp_path / "run"), "--save-every", "6").stdout)
    assert 12 == len(whole)
    assert whole[-1] < whole[0] - 0.3
    (tmp_path / "run" / "latest").write_text("step-00000006\n")
    resumed = train(plan, "--steps", "12", "--checkpoint", str(tmp_path / "run")).stdout
    assert "resumed after 6 steps" in resumed
    assert whole[6:] == losses(resumed)


@pytest.mark.distributed
def test_a_plan_of_another_world_is_one_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan_json.save(make_plan(gpt.tiny(), gpt, mesh=Mesh(dp_shard=2)), plan)
    done = train(plan)
    assert (1, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
    assert done.stderr.startswith("error: the plan needs 2 ranks (dp_shard=2), 1 are running;")
