"""Pipelines on gloo ranks compute what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from benchmarks.models import gpt, llama
from planner.ir.mesh import Mesh
from planner.ir.placement import Shard
from planner.ir.plan import Activation, Plan, Stage
from tests.runtime import pipeline_models
from tests.runtime.pipeline_ranks import Case, launch, train_all
from tests.runtime.plans import make_plan

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def stages(*begins: str) -> tuple[Stage, ...]:
    return tuple(Stage(begin, ()) for begin in ("", *begins))


def case(name: str, build: Callable[[], nn.Module], zoo: ModuleType, *begins: str, mesh: Mesh, dtype: torch.dtype = torch.float64, **plan: object) -> Case:
    torch.set_default_dtype(dtype)
    made: Plan = make_plan(build(), zoo, mesh=mesh, stages=stages(*begins), **{"microbatches": 4, "global_batch": 8, **plan})  # type: ignore[arg-type]
    torch.set_default_dtype(torch.float32)
    return Case(name, build, zoo.__name__, made, dtype)


def check(cases: list[Case], results: list[dict[str, dict[str, object]]]) -> None:
    found = {}
    for each in cases:
        for measure in ("loss", "gradient", "weight"):
            worst = max(rank[each.name][measure] for rank in results)
            if worst > TOLERANCE[each.dtype]:
                found[each.name, measure] = worst
        for rank in results:
            assert rank[each.name]["scheduled"] == rank[each.name]["executed"]
    assert {} == found


@pytest.mark.distributed
def test_two_stages_equal_one_process(tmp_path: Path) -> None:
    """pp=2: loss, gradients and weights after three steps of AdamW, both schedules, tied weights, buffers, skips, uneven stages, fp32."""
    pp2 = Mesh(pp=2)
    cases = [
        case("gpt gpipe", gpt.tiny, gpt, "layers.2", mesh=pp2, schedule="gpipe"),
        case("gpt 1f1b", gpt.tiny, gpt, "layers.3", mesh=pp2, schedule="1f1b"),
        case("gpt fp32", gpt.tiny, gpt, "layers.2", mesh=pp2, dtype=torch.float32),
        case("gpt recompute", gpt.tiny, gpt, "layers.2", mesh=pp2, recompute="full"),
        case("gpt head alone", gpt.tiny, gpt, "head", mesh=pp2),
        case("llama", llama.tiny, llama, "layers.2", mesh=pp2),
        case("skipping", pipeline_models.Skipping, pipeline_models, "b", mesh=pp2),
    ]
    check(cases, launch(train_all, 2, tmp_path, cases))


@pytest.mark.distributed
def test_four_ranks_equal_one_process(tmp_path: Path) -> None:
    """pp=4, and pp=2 with tp, sequence parallelism, FSDP and replication."""
    sequence = {"layers.1:output": Activation(Shard(1), Shard(1), Shard(1), Shard(1))}
    cases = [
        case("pp4", gpt.tiny, gpt, "layers.1", "layers.2", "layers.3", mesh=Mesh(pp=4)),
        case("pp4 skipping", pipeline_models.Skipping, pipeline_models, "a", "b", "c", mesh=Mesh(pp=4), schedule="gpipe"),
        case("pp2 zero0", gpt.tiny, gpt, "layers.2", mesh=Mesh(pp=2, dp_replicate=2), microbatches=2),
        case("pp2 zero1", llama.tiny, llama, "layers.2", mesh=Mesh(pp=2, dp_shard=2), zero=1, microbatches=2),
        case("pp2 zero3", gpt.tiny, gpt, "layers.2", mesh=Mesh(pp=2, dp_shard=2), zero=3, microbatches=2),
        case("pp2 tp2", llama.tiny, llama, "layers.2", mesh=Mesh(pp=2, tp=2)),
        case("pp2 tp2 vocabulary", gpt.tiny, gpt, "layers.2", mesh=Mesh(pp=2, tp=2), vocabulary=True),
        case("pp2 tp2 sequence", gpt.tiny, gpt, "layers.2", mesh=Mesh(pp=2, tp=2), sequence=True, vocabulary=True),
    ]
    assert sequence
    check(cases, launch(train_all, 4, tmp_path, cases))
