"""`autopar verify`: what it prints and the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from planner.cli.main import run
from planner.ir import plan_json
from planner.ir.options import Options
from planner.ir.plan import Plan
from tests.execution.cells import MODELS, planned

MODEL = str(MODELS / "mlp.py:tiny")


@cache
def plan() -> Plan:
    return planned("mlp.py:tiny", ranks=8, dtype="float32", options=Options(mesh=(("dp_shard", 8),), zero=3), families={}).plan


def falsified() -> Plan:
    return replace(plan(), prediction=replace(plan().prediction, collectives=((),)))


@pytest.mark.parametrize(("found", "code", "last"), [(plan, 0, "all proven"), (falsified, 1, "not proven: collectives")])
def test_the_verdict_is_the_exit_code(found: object, code: int, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report is on stdout also where something differs; its last line is the verdict."""
    assert callable(found)
    plan_json.save(found(), tmp_path / "plan.json")
    assert code == run(["verify", str(tmp_path / "plan.json"), MODEL, "--level", "shapes"])
    lines = capsys.readouterr().out.splitlines()
    assert ("Verification, level shapes: mlp.py:tiny on 8 ranks: dp_shard=8", last) == (lines[0], lines[-1])


def test_json_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks by name, with what they prove."""
    plan_json.save(falsified(), tmp_path / "plan.json")
    assert 1 == run(["verify", str(tmp_path / "plan.json"), MODEL, "--level", "shapes", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert ("autopar-verification/1", "shapes", False) == (printed["format"], printed["level"], printed["ok"])
    assert {"step": True, "parameters": True, "collectives": False, "memory": True} == {each["name"]: each["ok"] for each in printed["checks"]}
    assert all(each["proves"] and each["detail"] for each in printed["checks"])


def test_another_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for another model is a mistake, not a difference: nothing on stdout."""
    plan_json.save(plan(), tmp_path / "plan.json")
    assert 1 == run(["verify", str(tmp_path / "plan.json"), str(MODELS / "llama.py:tiny"), "--level", "shapes"])
    out, err = capsys.readouterr()
    assert ("", 1, True) == (out, len(err.splitlines()), err.startswith("error: the plan is for mlp.py:tiny with "))


def test_usage_errors_exit_with_2() -> None:
    """A missing model, an unknown level."""
    assert [2, 2] == [run(["verify", "plan.json"]), run(["verify", "plan.json", MODEL, "--level", "guesses"])]
