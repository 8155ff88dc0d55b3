"""Running a pipeline: each rank executes its list of the plan's schedule, one action after the other, and exchanges tensors with its peers.

The list is the one that was simulated, so what was priced is what executes. torch.distributed.pipelining has an engine of its own; it
keeps receive buffers for all microbatches of a step instead of those in flight, learns the shapes from a forward and backward of its own in
the first step, and takes no output but tensors. Messages are unbatched isend/irecv, in the order of `planner.runtime.exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planner.errors import MismatchError
from planner.ir.plan import Plan
from planner.ir.schedule import Action, Schedule
from planner.runtime import data_parallel, forward
from planner.runtime.crossing import Crossing, cut_layouts, wire
from planner.runtime.exchange import Compute, Receive, Send, Step, steps
from planner.runtime.placements import local
from planner.runtime.stage import StagePart, Value
from planner.runtime.world import World
from planner.schedules.build import build

Loss = Callable[[Any, int], Tensor]
"""From the model's output for microbatch number i, and i: what backward starts from."""
Key = tuple[str, int, int]
"""Names what an action makes: ("F" or "B", stage, microbatch)."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Lets the caller follow a step: `during` surrounds what happens in "forward" and "backward", `draws` the forward of a (stage, microbatch),
    where random numbers are drawn; `observe` is told each action as it ends."""

    during: Callable[[str], AbstractContextManager[object]] = lambda phase: nullcontext()
    observe: Callable[[Action], None] = lambda action: None
    draws: Callable[[int, int], AbstractContextManager[object]] = lambda stage, microbatch: nullcontext()


@dataclass(slots=True)
class Ends:
    """The ends of the autograd graph of one microbatch on one stage; `guard` must surround its backward."""

    leaves: tuple[Tensor, ...]
    roots: tuple[Tensor, ...]
    guard: AbstractContextManager[object]


@dataclass(slots=True)
class Flight:
    """What is in flight during one step: messages on their way in and out, values made for other stages, open autograd graphs, losses."""

    microbatches: Sequence[Any]
    loss: Loss
    watch: Watch
    arriving: dict[Key, list[tuple[Tensor, dist.Work]]] = field(default_factory=dict)
    leaving: list[tuple[Tensor, dist.Work]] = field(default_factory=list)
    made: dict[Key, tuple[Tensor, ...]] = field(default_factory=dict)
    open: dict[tuple[int, int], Ends] = field(default_factory=dict)
    losses: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Port:
    """A stage of this rank with the tensors that cross its two cuts; `last_backward` is the microbatch whose backward comes last."""

    part: StagePart
    received: tuple[Crossing, ...]
    sent: tuple[Crossing, ...]
    last_backward: int


@dataclass(frozen=True)
class Runner:
    """The pipeline as one rank executes it: its stages by index, its list of steps, and the group of the
    ranks along pp with their global numbers."""

    plan: Plan
    world: World
    ports: dict[int, Port]
    steps: tuple[Step, ...]
    group: dist.ProcessGroup
    ranks: tuple[int, ...]

    def step(self, microbatches: Sequence[Any], loss: Loss, *, watch: Watch = Watch()) -> tuple[Tensor, ...]:
        """Forward and backward of all microbatches, which are batches as the model takes them, on the mesh.

        Gradients add up in the parameters. Returns the loss of each microbatch, detached, on the rank of the last stage, () elsewhere.
        Raises MismatchError if the number of microbatches is not the plan's.
        """
        if len(microbatches) != self.plan.schedule.microbatches:
            raise MismatchError(f"the plan has {self.plan.schedule.microbatches} microbatches, the step got {len(microbatches)}")
        flight = Flight(microbatches, loss, watch)
        for step in self.steps:
            phase = "forward" if step.action.kind == "F" else "backward"
            with watch.during(phase):
                self.perform(step, flight)
        for _, work in flight.leaving:
            work.wait()
        return tuple(flight.losses[index] for index in sorted(flight.losses))

    def perform(self, step: Step, flight: Flight) -> None:
        """One step of this rank."""
        match step:
            case Send(action, to):
                self.send(action, to, flight)
            case Receive(action, to):
                self.receive(action, to, flight)
            case Compute(action):
                if action.kind == "F":
                    with flight.watch.draws(action.stage, action.microbatch):
                        self.forward(action, flight)
                else:
                    self.backward(action, flight)
                flight.watch.observe(action)

    def send(self, action: Action, to: int, flight: Flight) -> None:
        """Sends what an action made, and lets go of what earlier messages have delivered."""
        flight.leaving[:] = [(tensor, work) for tensor, work in flight.leaving if not work.is_completed()]
        for tensor in flight.made.pop(key(action)):
            flight.leaving.append((tensor, dist.isend(tensor, self.rank_of(to), group=self.group)))

    def receive(self, action: Action, to: int, flight: Flight) -> None:
        """Posts the receives of what an action of another rank makes for stage `to`."""
        port = self.ports[to]
        buffers = [crossing.buffer(self.world.device) for crossing in (port.received if action.kind == "F" else differentiable(port.sent))]
        source = self.rank_of(action.stage)
        flight.arriving[key(action)] = [(buffer, dist.irecv(wire(buffer), source, group=self.group)) for buffer in buffers]

    def rank_of(self, stage: int) -> int:
        """The global rank that runs `stage` for this rank's data and tensor-parallel coordinates."""
        return self.ranks[stage % len(self.ranks)]

    def take(self, name: Key, flight: Flight) -> tuple[Tensor, ...]:
        """What another action made, from this rank or from another one."""
        if name in flight.made:
            return flight.made.pop(name)
        messages = flight.arriving.pop(name)
        for _, work in messages:
            work.wait()
        return tuple(buffer for buffer, _ in messages)

    def forward(self, action: Action, flight: Flight) -> None:
        """One microbatch through one stage, and its loss where the stage is the last."""
        port, batch = self.ports[action.stage], flight.microbatches[action.microbatch]
        values = () if port.part.is_first else self.take(("F", action.stage - 1, action.microbatch), flight)
        leaves = tuple(crossing.enter(value) for crossing, value in zip(port.received, values, strict=True))
        args, kwargs = port.part.module.arguments(batch)
        with forward.guards(self.world):
            output = port.part.module(*args, **kwargs, **({"received": leaves} if leaves else {}))
        if port.part.is_last:
            with forward.loss_guard(output), forward.guards(self.world):
                roots: tuple[Tensor, ...] = (flight.loss(output, action.microbatch),)
            flight.losses[action.microbatch] = roots[0].detach()
            guard = forward.loss_guard(output)
        else:
            roots = tuple(crossing.leave(value) for crossing, value in zip(port.sent, output, strict=True))
            flight.made[key(action)] = tuple(wire(local(root)) for root in roots)
            guard = nullcontext()
        flight.open[action.stage, action.microbatch] = Ends(leaves, roots, guard)

    def backward(self, action: Action, flight: Flight) -> None:
        """The backward of one microbatch through one stage."""
        port, ends = self.ports[action.stage], flight.open.pop((action.stage, action.microbatch))
        data_parallel.set_last(port.part.module, self.plan, last=action.microbatch == port.last_backward)
        if port.part.is_last:
            grads: tuple[Tensor | None, ...] = (None,)
        else:
            values = self.take(("B", action.stage + 1, action.microbatch), flight)
            grads = tuple(crossing.enter_grad(value) for crossing, value in zip(differentiable(port.sent), values, strict=True))
            ends.roots = tuple(root for root, crossing in zip(ends.roots, port.sent, strict=True) if crossing.value.requires_grad)
        run = [(root, grad) for root, grad in zip(ends.roots, grads, strict=True) if root.requires_grad]
        with ends.guard, forward.implicit(self.world):
            torch.autograd.backward([root for root, _ in run], [grad for _, grad in run])
        if not port.part.is_first:
            flight.made[key(action)] = tuple(
                wire(crossing.leave_grad(leaf.grad, self.world.device))
                for crossing, leaf in zip(port.received, ends.leaves, strict=True)
                if crossing.value.requires_grad
            )


def key(action: Action) -> Key:
    """The name of what `action` makes."""
    return ("F" if action.kind == "F" else "B", action.stage, action.microbatch)


def differentiable(crossings: tuple[Crossing, ...]) -> tuple[Crossing, ...]:
    """Those whose gradient is sent back."""
    return tuple(crossing for crossing in crossings if crossing.value.requires_grad)


def runner(parts: Sequence[StagePart], plan: Plan, world: World) -> Runner:
    """The pipeline of `plan` on this rank, which runs the stages `parts`.

    Raises ClusterError for a schedule that is unknown or does not fit, MismatchError for one with actions that this engine does not run.
    """
    schedule = build(plan.schedule.name, stages=len(plan.stages), microbatches=plan.schedule.microbatches, virtual=plan.schedule.virtual)
    return runner_of(parts, schedule, plan, world)


def runner_of(parts: Sequence[StagePart], schedule: Schedule, plan: Plan, world: World) -> Runner:
    """`runner` for a given schedule."""
    halves = [str(action) for rank in schedule.ranks for action in rank if action.kind in ("I", "W")]
    if halves:
        raise MismatchError(f"schedule {schedule.name} splits backward ({halves[0]}), which this version cannot run; plan again with 1f1b")
    own = schedule.ranks[world.coordinate("pp")]
    group = world.mesh.get_group("pp")
    ports = {part.index: port_of(part, own, plan, world) for part in parts}
    return Runner(plan, world, ports, steps(schedule)[world.coordinate("pp")], group, tuple(dist.get_process_group_ranks(group)))


def port_of(part: StagePart, actions: tuple[Action, ...], plan: Plan, world: World) -> Port:
    """A stage with its crossings."""
    mesh = world.tp if world.degrees.tp > 1 else None

    def crossings(values: tuple[Value, ...]) -> tuple[Crossing, ...]:
        return tuple(Crossing(value, layout, mesh) for value, layout in zip(values, cut_layouts(plan, values), strict=True))

    last = [action.microbatch for action in actions if action.stage == part.index and action.kind == "B"][-1]
    return Port(part, crossings(part.received), crossings(part.sent), last)
