"""What `explain` shows: every figure of the plan that a person decides by, whole at 80 columns and in a pipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.ir.mesh import Mesh
from planner.ir.placement import Partial, Placement, Replicate, Shard
from planner.ir.plan import Illegal, MemoryKinds, Plan
from planner.report.console import print_difference, print_json, print_plan
from planner.report.places import change
from tests.example_plans import FULL, GIB, PLAIN


@pytest.mark.parametrize(("name", "plan"), [("explain_full.txt", FULL), ("explain_plain.txt", PLAIN)])
def test_explanation(name: str, plan: Plan, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """The whole text of a plan with every table, and of one with the fewest."""
    print_plan(plan)
    golden(name, capsys.readouterr().out)


def test_difference(golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """Only what differs is shown, by its path in the file; how the plans were found is left out."""
    mesh = Mesh(pp=2, dp_shard=1, tp=8)
    print_difference(FULL, replace(FULL, mesh=mesh, recompute=(), alternatives=(), buffers=("frequencies", "mask")))
    golden("diff.txt", capsys.readouterr().out)


def test_equal_plans_do_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Plans that differ in provenance only are the same."""
    print_difference(FULL, replace(FULL, provenance=(("host", "another"),)))
    assert "The plans do the same\n" == capsys.readouterr().out


@pytest.mark.parametrize("plan", [FULL, PLAIN])
def test_a_pipe_gets_80_columns(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal no line is longer than 80 and none holds an escape sequence or trailing blanks."""
    print_plan(plan)
    lines = capsys.readouterr().out.splitlines()
    assert [] == [line for line in lines if len(line) > 80 or "\x1b" in line or line != line.rstrip()]


def test_long_names_are_folded_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Every letter of a name longer than the line is there."""
    name = "model.decoder." + "x" * 150 + ".end"
    print_plan(replace(FULL, parameters=((name, (Replicate(), Shard(0), Shard(1))),)))
    shown = capsys.readouterr().out
    table = shown[shown.index("Parameters") : shown.index("R: whole")].splitlines()[3:]
    assert name == "".join(line[:36].strip() for line in table)


def test_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are shown as they are, and escape characters by their code."""
    print_plan(replace(FULL, illegal=(Illegal("[bold]tp=3[/bold]", "\x1b[2J\ud800"),)))
    shown = capsys.readouterr().out
    assert "[bold]tp=3[/bold]" in shown
    assert r"\x1b[2J\ud800" in shown


def test_equal_stages_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Four stages, the middle two alike: three rows."""
    memory = [MemoryKinds(GIB, GIB, GIB, size * GIB, 0, 0, 0) for size in (4, 2, 2, 1)]
    prediction = replace(
        FULL.prediction,
        memory_bytes=tuple(memory),
        peak_memory_bytes=tuple(kinds.total for kinds in memory),
        collectives=((), (), (), ()),
    )
    print_plan(replace(FULL, mesh=Mesh(pp=4, tp=4), stages=FULL.stages * 2, prediction=prediction))
    shown = capsys.readouterr().out
    rows = shown[shown.index("Memory of one rank") :].splitlines()[3:6]
    assert ["0", "1-2", "3"] == [row.split()[0] for row in rows]


def test_numbered_siblings_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters of unfolded layers with one placement are one row with their number; the odd one out is not hidden."""
    sharded, whole = (Replicate(), Shard(0), Replicate()), (Replicate(), Shard(0), Shard(1))
    named = [(f"blocks.{layer}.weight", sharded) for layer in range(8)] + [("heads.0.weight", sharded), ("heads.1.weight", whole)]
    print_plan(replace(FULL, parameters=tuple(named)))
    shown = capsys.readouterr().out
    rows = shown[shown.index("Parameters") : shown.index("R: whole")].splitlines()[3:]
    assert ["blocks.*.weight (8)  S(0)        R", "heads.0.weight       S(0)        R", "heads.1.weight       S(0)        S(1)"] == rows


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (Partial(), Replicate(), "P(sum) -> R: all_reduce"),
        (Partial(), Shard(1), "P(sum) -> S(1): reduce_scatter"),
        (Shard(1), Replicate(), "S(1) -> R: all_gather"),
        (Shard(1), Shard(2), "S(1) -> S(2): all_to_all"),
        (Replicate(), Shard(0), "R -> S(0)"),
        (Shard(0), Shard(0), "S(0)"),
    ],
    ids=str,
)
def test_change_names_its_collective(before: Placement, after: Placement, text: str) -> None:
    """Every redistribution is shown with what it runs."""
    assert text == change(before, after)


def test_json_is_the_plan_file(capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    """`--json` prints the bytes of the file."""
    print_json(FULL)
    golden("plan_full.json", capsys.readouterr().out)
