"""What the planner plans, the runtime runs: the result of one process, and the collectives that were predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planner.ir.options import Options
from tests.execution.cells import Cell, planned
from tests.execution.ranks import Result, run

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
MODELS = ("gpt.py:tiny", "llama.py:tiny", "mlp.py:tiny", "vit.py:tiny")


def options(zero: int | None = None, schedule: str = "auto", recompute: str = "none", global_batch: int = 16, **mesh: int) -> Options:
    return Options(mesh=tuple(mesh.items()), zero=zero, schedule=schedule, recompute=recompute, global_batch=global_batch)


TWO = (
    options(dp_replicate=2),
    options(dp_shard=2, zero=1),
    options(dp_shard=2, zero=3, recompute="full"),
    options(tp=2),
    options(tp=2, global_batch=1),
    options(pp=2, schedule="gpipe"),
    options(pp=2, schedule="1f1b"),
)
FOUR = (
    options(dp_shard=4, zero=3),
    options(dp_replicate=2, dp_shard=2, zero=2),
    options(tp=4, global_batch=2),
    options(tp=2, dp_shard=2, zero=3),
    options(tp=2, dp_shard=2, zero=1, recompute="full"),
    options(tp=2, dp_replicate=2),
    options(pp=2, tp=2),
    options(pp=2, dp_shard=2, zero=1, schedule="gpipe"),
    options(pp=2, dp_shard=2, zero=3),
    options(pp=4),
)


def grid(ranks: int, asked: Sequence[Options]) -> list[Cell]:
    """Every model under every option in float64, the two language models in float32 as well."""
    families: dict[tuple[str, str], object] = {}
    cells = [(target, "float64", option) for target in MODELS for option in asked]
    cells += [(target, "float32", option) for target in MODELS[:2] for option in asked[1::2]]
    return [planned(target, ranks=ranks, dtype=dtype, options=option, families=families) for target, dtype, option in cells]  # type: ignore[arg-type]


def failures(cells: Sequence[Cell], results: Sequence[dict[str, Result]]) -> dict[str, str]:
    """Cells in which some rank differs, with the first reason."""
    found = {}
    for cell in cells:
        for result in (ranks[cell.name] for ranks in results):
            if result.error:
                found[cell.name] = result.error
            elif not result.largest <= TOLERANCE[cell.dtype]:
                found[cell.name] = f"{replace(result, values={})}"
            elif result.collectives:
                found[cell.name] = "; ".join(result.collectives)
    return found


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "asked"), [(2, TWO), (4, FOUR)])
def test_plans_execute_as_predicted(ranks: int, asked: Sequence[Options], tmp_path: Path) -> None:
    """Loss, every gradient, the weights after three steps, and number and bytes of all collectives."""
    cells = grid(ranks, asked)
    assert {} == failures(cells, run(cells, ranks=ranks, directory=tmp_path))
    shards = {str(p) for cell in cells for _, placements in cell.plan.parameters for p in placements[-1:]}
    assert {"R", "S(0)", "S(1)"} <= shards, "the grid must exercise column and row parallel weights"
    moved = {(str(a.value_from), str(a.value)) for cell in cells for _, a in cell.plan.activations}
    assert {("P(sum)", "R"), ("P(sum)", "S(1)"), ("S(1)", "R")} <= moved, f"the grid must exercise plain and sequence parallelism: {moved}"
