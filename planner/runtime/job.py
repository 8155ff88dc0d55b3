"""A training job: this rank's part of the model under a plan, and one step of it.

With w_m the weight of microbatch m and W the sum over all microbatches of all data-parallel ranks, a step computes

    loss = sum over m of (w_m / W) loss_m,    gradients = d loss / d parameters

so both are the global mean, also where ranks hold unequal weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.errors import MismatchError
from planner.ir.plan import Plan
from planner.runtime import batches, checkpoint, forward, gradients, shared
from planner.runtime.pipeline import Loss, Watch
from planner.runtime.placements import local
from planner.runtime.rng import Draws, read_state
from planner.runtime.world import World


@dataclass
class Progress:
    """What the job is doing, for the recorder: idle, forward, backward or step; and how many steps are behind it."""

    phase: str = "idle"
    steps: int = 0

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Marks what happens inside as `phase`."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before


class Engine(Protocol):
    """What runs the microbatches of a step: the whole model, or stages of a pipeline."""

    def step(self, microbatches: Sequence[Any], loss: Loss, *, watch: Watch) -> tuple[Tensor, ...]:
        """Forward and backward of all microbatches; their losses, detached, on the ranks that have the model's output."""


@dataclass(frozen=True)
class Job:
    """What `parallelize` returns on each rank.

    `parts` are the pieces of the model that this rank runs: one, or several stages of a pipeline. `copies` are parameters that other ranks'
    stages hold too, `counted` names those that this rank counts in the norm.
    """

    parts: tuple[nn.Module, ...]
    plan: Plan
    world: World
    engine: Engine
    loss: Callable[[Any, Any], Tensor]
    weight: Callable[[Any], float]
    copies: tuple[shared.Copies, ...]
    counted: frozenset[str]
    draws: Draws
    progress: Progress = field(default_factory=Progress)

    @property
    def module(self) -> nn.Module:
        """This rank's part of the model; MismatchError where it has several, see `parts`."""
        if len(self.parts) > 1:
            raise MismatchError(f"this rank runs {len(self.parts)} stages of the pipeline; use job.parts")
        return self.parts[0]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters under their names in the whole model; tied ones once."""
        for part in self.parts:
            yield from part.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's parameters, for the optimizer."""
        return (parameter for _, parameter in self.named_parameters())

    def local_batch(self, batch: Any) -> Any:
        """This rank's share of a global batch: contiguous samples, in the order of data-parallel ranks.

        Raises MismatchError if the samples cannot be divided equally.
        """
        return batches.local_share(batch, self.plan, self.world.dp_rank)

    def step(self, batch: Any) -> Tensor:
        """Forward and backward of this rank's batch in all its microbatches; the global mean loss, the same scalar on every rank.

        Gradients are ready for `clip_grad_norm_` and the optimizer; zero them before the next step.
        """
        moved = pytree.tree_map(lambda leaf: leaf.to(self.world.device) if isinstance(leaf, Tensor) else leaf, batch)
        plain = batches.microbatches(moved, self.plan)
        placed = tuple(forward.on_mesh(part, self.world) for part in plain)
        with self.progress.during("step"):
            shares = self.shares(plain)

        def loss(output: Any, index: int) -> Tensor:
            value = forward.whole(self.loss(output, placed[index]))
            wide = value.to(torch.promote_types(value.dtype, torch.float32))
            return wide * shares[index].to(wide.dtype)

        watch = Watch(during=self.progress.during, draws=self.draws.of)
        losses = self.engine.step(placed, loss, watch=watch)
        with self.progress.during("step"):
            self.finish_gradients()
            total = torch.stack([value.double() for value in losses]).sum() if losses else torch.zeros_like(shares[0])
            mean = self.world.sum_over(total, ("pp", *self.world.data_axes))
        self.progress.steps += 1
        self.draws.step += 1
        return mean

    def shares(self, parts: tuple[Any, ...]) -> Tensor:
        """w_m / W of this rank's microbatches, float64."""
        weights = torch.tensor([float(self.weight(part)) for part in parts], dtype=torch.float64, device=self.world.device)
        return weights / self.world.sum_over(weights.sum(), self.world.data_axes)

    def finish_gradients(self) -> None:
        """Sums that are still to do, over tp and over the stages that share a parameter; on the first step, the check of placements."""
        named = tuple(self.named_parameters())
        gradients.reduce_partial(named, self.world)
        shared.sum_gradients(self.copies)
        if self.progress.steps == 0:
            gradients.check_placements(named)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales the gradients so that their 2-norm over the whole model is at most `max_norm`; returns the norm before."""
        named = tuple(self.named_parameters())
        norm = gradients.norm([parameter for fqn, parameter in named if fqn in self.counted], self.world)
        gradients.scale([parameter for _, parameter in named], max_norm, norm)
        return norm

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's parameters and persistent buffers by their names in the whole model; shards are DTensors. For files see `checkpoint`."""
        return checkpoint.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copies values in, from whole tensors or from another `state_dict`; MismatchError for a missing name or a wrong shape."""
        checkpoint.load_state_dict(self, state)

    def rng_state(self) -> dict[str, int]:
        """What a checkpoint keeps so that a resumed job draws the same random numbers: the same on every rank, two integers for JSON."""
        return self.draws.state()

    def load_rng_state(self, state: Mapping[str, int]) -> None:
        """Continues with the random numbers where `rng_state` was taken; MismatchError for anything else."""
        self.draws.seed, self.draws.step = read_state(state)

    def rank_summary(self) -> str:
        """One line: this rank's coordinates, its parameters and bytes."""
        world = self.world
        where = " ".join(f"{axis}={world.coordinate(axis)}/{world.degrees.degree(axis)}" for axis in world.mesh.mesh_dim_names or ())
        shards = [local(p) for p in self.parameters()]
        count, nbytes = sum(p.numel() for p in shards), sum(p.numel() * p.element_size() for p in shards)
        return f"rank {torch.distributed.get_rank()} on {world.device}: {where}; {count:,} parameters in {nbytes / 2**20:.1f} MiB"
