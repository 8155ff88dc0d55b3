"""Pipelines on gloo ranks compute what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.models import gpt, llama
from planner.ir.mesh import Mesh
from planner.ir.placement import Shard
from planner.ir.plan import Activation, Stage
from tests.runtime import pipeline_models
from tests.runtime.pipeline_models import Skipping
from tests.runtime.pipeline_ranks import Case, launch, train_all
from tests.runtime.plans import make_plan

Results = list[dict[str, dict[str, Any]]]
PP2 = Mesh(pp=2)


def case(
    name: str, build: Callable[[], nn.Module], zoo: ModuleType, *begins: str, dtype: torch.dtype = torch.float64, cut: Any = None, **plan: Any
) -> Case:
    """A case with four microbatches of one or two samples; `cut` is a further border."""
    torch.set_default_dtype(dtype)
    stages = tuple(Stage(begin, ()) for begin in ("", *begins))
    made = make_plan(build(), zoo, stages=stages, **{"mesh": PP2, "microbatches": 4, "global_batch": 8, **plan})
    torch.set_default_dtype(torch.float32)
    made = replace(made, activations=tuple(sorted((*made.activations, *(cut or {}).items()))))
    return Case(name, build, zoo.__name__, made, dtype, 1e-9 if dtype is torch.float64 else 1e-5)


def beyond(cases: list[Case], results: Results) -> dict[tuple[str, str], float]:
    """The differences that are larger than the tolerance of their case."""
    worst = {
        (each.name, measure): max(rank[each.name][measure] for rank in results) for each in cases for measure in ("loss", "gradient", "weight")
    }
    tolerance = {each.name: each.tolerance for each in cases}
    return {key: value for key, value in worst.items() if not value <= tolerance[key[0]]}


@pytest.mark.distributed
def test_two_stages_equal_one_process(tmp_path: Path) -> None:
    """Loss, gradients and weights over three steps; both schedules, tied weights, buffers, skips, nested outputs, uneven stages, fp32."""
    cases = [
        case("gpt gpipe", gpt.tiny, gpt, "layers.2", schedule="gpipe"),
        case("gpt 1f1b", gpt.tiny, gpt, "layers.3", recompute="full"),
        case("gpt fp32", gpt.tiny, gpt, "layers.2", dtype=torch.float32),
        case("gpt head alone", gpt.tiny, gpt, "head"),
        case("llama", llama.tiny, llama, "layers.2"),
        case("skipping", Skipping, pipeline_models, "b"),
    ]
    results: Results = launch(train_all, 2, tmp_path, cases)
    assert {} == beyond(cases, results)
    assert all(rank[each.name]["largest"] > 1e-3 for rank in results for each in cases)
    assert all(rank[each.name]["scheduled"] == rank[each.name]["executed"] for rank in results for each in cases)


@pytest.mark.distributed
def test_four_ranks_equal_one_process(tmp_path: Path) -> None:
    """Four stages, and two with tensor and sequence parallelism, FSDP and replication; a cut in a sequence-parallel region sends half."""
    sequence = {"layers.1:output": Activation(Shard(1), Shard(1), Shard(1), Shard(1))}
    tp2: dict[str, Any] = {"mesh": Mesh(pp=2, tp=2), "vocabulary": True}
    cases = [
        case("pp4", gpt.tiny, gpt, "layers.1", "layers.2", "layers.3", mesh=Mesh(pp=4)),
        case("pp4 skipping", Skipping, pipeline_models, "a", "b", "c", mesh=Mesh(pp=4), schedule="gpipe"),
        case("zero 0", gpt.tiny, gpt, "layers.2", mesh=Mesh(pp=2, dp_replicate=2), microbatches=2),
        case("zero 1", llama.tiny, llama, "layers.2", mesh=Mesh(pp=2, dp_shard=2), zero=1, microbatches=2),
        case("zero 3", gpt.tiny, gpt, "layers.2", mesh=Mesh(pp=2, dp_shard=2), zero=3, microbatches=2),
        case("tp", gpt.tiny, gpt, "layers.2", **tp2),
        case("tp sequence", gpt.tiny, gpt, "layers.2", sequence=True, cut=sequence, **tp2),
    ]
    results: Results = launch(train_all, 4, tmp_path, cases)
    assert {} == beyond(cases, results)
    whole = 2 * 16 * 32 * 8
    assert [(whole,), (whole // 2,)] == [results[0][name]["sent_bytes"] for name in ("tp", "tp sequence")]
