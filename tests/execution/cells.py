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
from planner.ir.semantics import EXACT, semantics
from planner.trace.load import load
from planner.trace.source import ModelSource
from planner.trace.trace import trace

MODELS = Path(__file__).parents[2] / "benchmarks" / "models"


@dataclass(frozen=True)
class Cell:
    """`target` is a model file, relative to the zoo, and a factory ("gpt.py:tiny"); `dtype` is float64 with AdamW or float32 with SGD. The
    model starts `built`, or on the `meta` device. `divided` says that it is compared with a process that runs the microbatches of all ranks one
    by one, because its result depends on them."""

    name: str
    target: str
    dtype: str
    plan: Plan
    start: str = "built"
    divided: bool = False


def source_of(target: str, dtype: str) -> ModelSource:
    """The model file with parameters and floating inputs in `dtype`."""
    source, wanted = load(str(MODELS / target)), getattr(torch, dtype)

    def cast(value: torch.Tensor) -> torch.Tensor:
        return value.to(wanted) if value.is_floating_point() else value

    def model() -> torch.nn.Module:
        return source.model()._apply(cast)  # .to() would make complex buffers real

    def inputs(batch_size: int) -> dict[str, torch.Tensor]:
        return {name: cast(value) for name, value in source.inputs(batch_size).items()}

    return replace(source, model=model, inputs=inputs)


def cluster_of(ranks: int) -> Cluster:
    """Ranks on one machine with links so fast that tiny models are worth sharding."""
    free = Link(latency_s=0.0, bytes_per_s=1e15)
    machine = preset("cpu-gloo").with_devices(ranks, ranks)
    return replace(machine, intra=free, inter=free, device=replace(machine.device, launch_s=0.0, ramp_s=0.0))


def planned(target: str, *, ranks: int, dtype: str, options: Options, families: dict[tuple[str, str], GraphFamily], compute: str = "") -> Cell:
    """A cell with the plan that the planner makes under `options`; `compute` is the dtype of forward and backward where it is not `dtype`."""
    if (target, compute or dtype) not in families:
        families[target, compute or dtype] = trace(source_of(target, dtype), compute_dtype=compute or None)
    family = families[target, compute or dtype]
    plan = make_plan(family, cluster_of(ranks), options)
    parts = plan.schedule.microbatches * plan.mesh.dp
    mesh = ",".join(f"{axis}={degree}" for axis, degree in options.mesh)
    how = f"zero={plan.schedule.zero} {plan.schedule.name} {options.recompute} batch={options.global_batch}"
    name = f"{target} {dtype} {mesh} {how}{compute and f' in {compute}'}"
    return Cell(name, target, dtype, plan, divided=semantics(family.low, parts=parts) != EXACT)
