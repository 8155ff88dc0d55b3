"""A training job: this rank's part of the model under a plan, and one step of it.

With w_m the weight of microbatch m and W the sum over all microbatches of all data-parallel ranks, a step computes

    loss = sum over m of (w_m / W) loss_m,    gradients = d loss / d parameters

so both are the global mean, also where ranks hold unequal weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.ir.plan import Plan
from planner.runtime import batches, data_parallel, forward, gradients
from planner.runtime.world import World

Arguments = Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]


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


@dataclass(frozen=True)
class Job:
    """What `parallelize` returns on each rank.

    `module` is this rank's part of the model, `arguments` picks the arguments of its forward out of a batch.
    """

    module: nn.Module
    plan: Plan
    world: World
    loss: forward.Loss
    weight: Callable[[Any], float]
    arguments: Arguments
    progress: Progress = field(default_factory=Progress)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters under their names in the whole model; tied ones once."""
        return self.module.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's parameters, for the optimizer."""
        return self.module.parameters()

    def local_batch(self, batch: Any) -> Any:
        """This rank's share of a global batch: contiguous samples, in the order of data-parallel ranks.

        Raises MismatchError if the samples cannot be divided equally.
        """
        return batches.local_share(batch, self.plan, self.world.dp_rank)

    def step(self, batch: Any) -> Tensor:
        """Forward and backward of this rank's batch in all its microbatches; the global mean loss, the same scalar on every rank.

        Gradients are ready for `clip_grad_norm_` and the optimizer, and add up over calls until they are zeroed.
        """
        moved = pytree.tree_map(lambda leaf: leaf.to(self.world.device) if isinstance(leaf, Tensor) else leaf, batch)
        parts = batches.microbatches(moved, self.plan)
        with self.progress.during("step"):
            shares = self.shares(parts)
        total = sum(self.microbatch(part, share, last=part is parts[-1]) for part, share in zip(parts, shares, strict=True))
        named = tuple(self.named_parameters())
        with self.progress.during("step"):
            gradients.reduce_partial(named, self.world)
            loss = self.world.sum_over(torch.as_tensor(total), self.world.dp_axes)
        if self.progress.steps == 0:
            gradients.check_placements(named)
        self.progress.steps += 1
        return loss

    def shares(self, parts: tuple[Any, ...]) -> Tensor:
        """w_m / W of this rank's microbatches, float64."""
        weights = torch.tensor([float(self.weight(part)) for part in parts], dtype=torch.float64, device=self.world.device)
        return weights / self.world.sum_over(weights.sum(), self.world.dp_axes)

    def microbatch(self, batch: Any, share: Tensor, *, last: bool) -> Tensor:
        """Forward and backward of one microbatch; its part of the loss, detached."""
        data_parallel.set_last(self.module, self.plan, last=last)
        placed = forward.on_mesh(batch, self.world)
        args, kwargs = self.arguments(placed)
        with self.progress.during("forward"), forward.guards(self.world):
            output = self.module(*args, **kwargs)
        with forward.loss_guard(output):
            with self.progress.during("forward"), forward.guards(self.world):
                loss = self.loss(output, placed)
                scaled = forward.whole(loss) * share.to(loss.dtype)
            with self.progress.during("backward"), forward.implicit(self.world):
                scaled.backward()
        return scaled.detach()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales the gradients so that their 2-norm over the whole model is at most `max_norm`; returns the norm before."""
        return gradients.clip(tuple(self.named_parameters()), max_norm, self.world)

    def rank_summary(self) -> str:
        """One line: this rank's coordinates, its parameters and bytes."""
        world = self.world
        where = " ".join(f"{axis}={world.coordinate(axis)}/{world.degrees.degree(axis)}" for axis in world.mesh.mesh_dim_names or ())
        local = [gradients.local(p) for p in self.parameters()]
        count, nbytes = sum(p.numel() for p in local), sum(p.numel() * p.element_size() for p in local)
        return f"rank {torch.distributed.get_rank()} on {world.device}: {where}; {count:,} parameters in {nbytes / 2**20:.1f} MiB"
