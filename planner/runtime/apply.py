"""A plan applied to a module: what training code calls on every rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from planner.ir import plan_json
from planner.ir.batch import forward_arguments
from planner.ir.plan import Plan
from planner.runtime import (
    attention,
    batches,
    borders,
    check,
    data_parallel,
    embedding,
    materialize,
    pipeline,
    placements,
    recompute,
    rng,
    shared,
    statistics,
)
from planner.runtime.job import Job
from planner.runtime.rng import Draws
from planner.runtime.split import split, stage_plan
from planner.runtime.whole import Whole
from planner.runtime.world import World
from planner.runtime.world import start as start_world


def parallelize(
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan | str | Path,
    *,
    loss: Callable[[Any, Any], Tensor],
    weight: Callable[[Any], float] | None = None,
    seed: int = 0,
) -> Job:
    """This rank's part of `model` under `plan`, on the device of this rank.

    Call it on every rank with the same arguments. `model` is a module with equal values on every rank, one on the meta device (each submodule
    then initialises itself, from `seed`), or a function that builds it. `loss(output, batch)` is the mean over a microbatch,
    `weight(batch)` what a microbatch counts in the global mean (default: its samples). Under torchrun the process group is
    started if there is none.

    Raises MismatchError, before anything is allocated, if the plan is for another model or another number of ranks.
    """
    plan = plan if isinstance(plan, Plan) else plan_json.load(Path(plan))
    module = model if isinstance(model, nn.Module) else model()
    check.check_model(module, plan)
    world = start_world(plan.mesh)
    check.check_values(module, world)
    weigh = weight or partial(samples, plan)
    if plan.mesh.pp > 1:
        return staged(module, plan, world, loss=loss, weight=weigh, seed=seed)
    engine = Whole(module, plan, world, partial(forward_arguments, module.forward))
    place(module, plan, materialize.start_of(module, world.device, seed), world)
    counted = frozenset(fqn for fqn, _ in module.named_parameters())
    return Job((module,), plan, world, engine, loss, weigh, (), counted, Draws(world, seed))


def staged(
    module: nn.Module, plan: Plan, world: World, *, loss: Callable[[Any, Any], Tensor], weight: Callable[[Any], float], seed: int
) -> Job:
    """The job of a rank that runs some of the stages of a pipeline."""
    start = materialize.start_of(module, world.device, seed)
    own = range(world.coordinate("pp"), len(plan.stages), plan.mesh.pp)
    parts = tuple(split(module, plan, pp_rank=stage, device=world.device) for stage in own)
    for part in parts:
        place(part.module, stage_plan(plan, part), start, world)
    copies = shared.copies(parts, world)
    shared.broadcast_values(copies)
    counted = frozenset(fqn for fqn, _ in shared.counted(parts))
    modules = tuple(part.module for part in parts)
    return Job(modules, plan, world, pipeline.runner(parts, plan, world), loss, weight, copies, counted, Draws(world, seed))


def place(module: nn.Module, plan: Plan, start: materialize.Start, world: World) -> None:
    """Gives `module`, whose names are those of the whole model, values, placements, borders, recompute and its data-parallel engine.

    One unit at a time: a block is built whole, cut along tp and sharded over dp before the next one is built.
    """
    engine = data_parallel.is_needed(plan)
    units = data_parallel.units(module, plan)
    recompute.install(module, plan)
    statistics.install(module, plan)
    if world.degrees.tp > 1:
        attention.register()
        rng.install(world)
        embedding.install(module, plan)
        borders.install(module, plan.activations, world.tp)
    for fqn, _ in (*units, ("", module)):
        owners = tuple(name for name, _ in module.named_modules() if owned(name, fqn, units))
        materialize.fill(module, owners, start)
        if world.degrees.tp > 1:
            placements.distribute(module, owners, plan, world.tp)
        if engine:
            data_parallel.engage(module.get_submodule(fqn), plan, world, root=not fqn)


def owned(name: str, unit: str, units: tuple[tuple[str, nn.Module], ...]) -> bool:
    """Whether the submodule `name` belongs to `unit`: lies inside it or, for the root "", inside no other."""
    if unit:
        return name == unit or name.startswith(f"{unit}.")
    return not any(owned(name, other, units) for other, _ in units)


def samples(plan: Plan, batch: Any) -> float:
    """The default weight of a microbatch."""
    return float(batches.batch_size(batch, plan))
