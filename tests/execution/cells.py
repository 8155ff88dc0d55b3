"""One cell: a model of the zoo, a plan that the planner made for it, and how it is trained. Planned in the parent, run by all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from costmodels.hardware import Cluster, Link, preset
from planner.driver import make_plan
from planner.ir.family import GraphFamily
from planner.ir.options import Options
from planner.ir.plan import Plan
from planner.trace.load import load
from planner.trace.source import ModelSource
from planner.trace.trace import trace

MODELS = Path(__file__).parents[2] / "benchmarks" / "models"


@dataclass(frozen=True)
class Cell:
    """`target` is a file of the zoo and a factory ("gpt.py:tiny"); `dtype` is float64 with AdamW or float32 with SGD."""

    name: str
    target: str
    dtype: str
    plan: Plan


def source_of(target: str, dtype: str) -> ModelSource:
    """The model file with parameters and floating inputs in `dtype`."""
    source, wanted = load(str(MODELS / target)), getattr(torch, dtype)

    def model() -> torch.nn.Module:
        return source.model().to(wanted)

    def inputs(batch_size: int) -> dict[str, torch.Tensor]:
        return {name: value.to(wanted) if value.is_floating_point() else value for name, value in source.inputs(batch_size).items()}

    return replace(source, model=model, inputs=inputs)


def cluster_of(ranks: int) -> Cluster:
    """Ranks on one machine with links so fast that tiny models are worth sharding."""
    free = Link(latency_s=0.0, bytes_per_s=1e15)
    machine = preset("cpu-gloo").with_devices(ranks, ranks)
    return replace(machine, intra=free, inter=free, device=replace(machine.device, launch_s=0.0, ramp_s=0.0))


def planned(target: str, *, ranks: int, dtype: str, options: Options, families: dict[tuple[str, str], GraphFamily]) -> Cell:
    """A cell with the plan that the planner makes under `options`."""
    if (target, dtype) not in families:
        families[target, dtype] = trace(source_of(target, dtype))
    plan = make_plan(families[target, dtype], cluster_of(ranks), options)
    name = (
        f"{target} {dtype} {','.join(f'{a}={d}' for a, d in options.mesh)} zero={plan.schedule.zero} {plan.schedule.name} {options.recompute} batch={options.global_batch}"
    )
    return Cell(name, target, dtype, plan)
