"""The traps that are executed: a model of `models/`, what is asked of the planner, and how the model starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from planner.ir.family import GraphFamily
from planner.ir.options import Options
from planner.ir.plan import Plan
from planner.trace.trace import trace
from tests.execution.cells import Cell, planned, source_of

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Asked:
    """One cell before it is planned; `target` is relative to `models/`."""

    target: str
    options: Options
    start: str = "built"


def options(global_batch: int = 8, zero: int | None = None, schedule: str = "auto", recompute: str = "none", **mesh: int) -> Options:
    return Options(mesh=tuple(mesh.items()), zero=zero, schedule=schedule, recompute=recompute, global_batch=global_batch)


TWO = {
    "1 tied bare tp": Asked("tied.py:bare", options(tp=2)),
    "1 tied tp": Asked("tied.py:model", options(tp=2)),
    "1 tied pp": Asked("tied.py:bare", options(pp=2)),
    "1 tied pp meta": Asked("tied.py:model", options(pp=2), start="meta"),
    "1 tied zero 3": Asked("tied.py:model", options(dp_shard=2, zero=3)),
    "1 tied zero 3 meta": Asked("tied.py:bare", options(dp_shard=2, zero=3), start="meta"),
    "2 kv heads tp": Asked("kv_heads.py:model", options(global_batch=1, tp=2)),
    "2 pooled tp": Asked("kv_heads.py:pooled", options(global_batch=1, tp=2)),
    "3 fives tp": Asked("uneven.py:fives", options(global_batch=1, tp=2)),
    "4 vocabulary even dp": Asked("vocabulary.py:even", options(dp_shard=2, zero=1)),
    "8 buffers tp": Asked("buffers.py:model", options(tp=2), start="meta"),
    "8 buffers pp": Asked("buffers.py:model", options(pp=2), start="meta"),
    "8 buffers dp": Asked("buffers.py:model", options(dp_shard=2, zero=3), start="meta"),
    "8 forgetful meta": Asked("buffers.py:forgetful", options(dp_shard=2, zero=1), start="meta"),
    "8 forgetful built": Asked("buffers.py:forgetful", options(pp=2)),
    "9 nested": Asked("nested.py:model", options(pp=2)),
    "9 nested scaled": Asked("nested.py:scaled", options(pp=2, schedule="gpipe")),
    "10 skip tp": Asked("skip.py:model", options(tp=2)),
    "12 in place tp": Asked("in_place.py:model", options(tp=2)),
    "13 branch dp": Asked("branch.py:model", options(dp_shard=2, zero=1)),
    "13 branch alone dp": Asked("branch.py:alone", options(dp_replicate=2)),
}
FOUR = {
    "1 tied pp tp": Asked("tied.py:model", options(pp=2, tp=2)),
    "1 tied pp zero 3": Asked("tied.py:model", options(pp=2, dp_shard=2, zero=3)),
    "2 kv heads tp": Asked("kv_heads.py:model", options(global_batch=2, tp=4)),
    "2 pooled tp": Asked("kv_heads.py:pooled", options(global_batch=2, tp=4)),
    "3 heads tp": Asked("uneven.py:model", options(global_batch=1, tp=4)),
    "3 fives tp": Asked("uneven.py:fives", options(tp=4)),
    "4 vocabulary odd tp": Asked("vocabulary.py:model", options(global_batch=2, tp=4)),
    "4 vocabulary even tp": Asked("vocabulary.py:even", options(global_batch=2, tp=4)),
    "4 vocabulary even tp dp": Asked("vocabulary.py:even", options(global_batch=6, tp=2, dp_shard=2)),
    "4 vocabulary odd dp": Asked("vocabulary.py:model", options(dp_shard=4, zero=3)),
    "5 head scale tp": Asked("head_scale.py:model", options(tp=4)),
    "5 head scale tp dp": Asked("head_scale.py:model", options(tp=2, dp_shard=2, zero=1)),
    "10 skip pp": Asked("skip.py:model", options(pp=4)),
    "11 lora tp dp": Asked("lora.py:model", options(tp=2, dp_shard=2, zero=3)),
    "11 lora pp": Asked("lora.py:model", options(pp=4)),
    "13 one token": Asked("branch.py:plain", options(global_batch=1, tp=4)),
    "13 three samples": Asked("branch.py:plain", options(global_batch=3)),
}
WORLDS = {2: TWO, 4: FOUR}


REFUSED = ("8 forgetful meta",)
"""Cells that every rank refuses."""


@cache
def family(target: str) -> GraphFamily:
    """The recording of a model of `models/`."""
    return trace(source_of(str(MODELS / target), "float64"))


def plan(target: str, ranks: int, **asked: int) -> Plan:
    """The plan of a model that is not run."""
    return _cell("", Asked(target, options(**asked)), ranks).plan  # type: ignore[arg-type]


@cache
def cells(ranks: int) -> dict[str, Cell]:
    """All cells of one world, planned."""
    return {name: _cell(name, asked, ranks) for name, asked in WORLDS[ranks].items()}


def _cell(name: str, asked: Asked, ranks: int) -> Cell:
    path = str(MODELS / asked.target)
    made = planned(path, ranks=ranks, dtype="float64", options=asked.options, families={(path, "float64"): family(asked.target)})
    return replace(made, name=name, start=asked.start)
