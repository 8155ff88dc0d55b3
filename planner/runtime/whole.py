"""A model in one piece: every microbatch runs forward, loss and backward before the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from planner.ir.plan import Plan
from planner.runtime import data_parallel, forward
from planner.runtime.pipeline import Loss, Watch
from planner.runtime.world import World

Arguments = Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Whole:
    """The counterpart of `planner.runtime.pipeline.Runner` without stages; `arguments` picks those of `module`'s forward out of a batch."""

    module: nn.Module
    plan: Plan
    world: World
    arguments: Arguments

    def step(self, microbatches: Sequence[Any], loss: Loss, *, watch: Watch) -> tuple[Tensor, ...]:
        """Forward and backward of all microbatches, which are batches on the mesh; gradients add up. The loss of each, detached."""
        last = len(microbatches) - 1
        losses = []
        for index, batch in enumerate(microbatches):
            data_parallel.set_last(self.module, self.plan, last=index == last)
            losses.append(self.microbatch(batch, index, partial(on_index, loss, index), watch))
        return tuple(losses)

    def microbatch(self, batch: Any, index: int, loss: Callable[[Any], Tensor], watch: Watch) -> Tensor:
        """One microbatch; its loss, detached."""
        args, kwargs = self.arguments(batch)
        with ExitStack() as guard:
            with watch.draws(0, index), watch.during("forward"), forward.guards(self.world):
                output = self.module(*args, **kwargs)
                guard.enter_context(forward.loss_guard(output))
                value = loss(output)
            with watch.during("backward"), forward.implicit(self.world):
                value.backward()
        return value.detach()


def on_index(loss: Loss, index: int, output: Any) -> Tensor:
    """`loss` with its microbatch known."""
    return loss(output, index)
