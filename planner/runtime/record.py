"""The collectives that one step really runs, in the words of the plan's prediction.

A dispatch mode sees every collective below autograd and below DTensor: functional ones (DTensor), those of process groups (FSDP2, the job
itself) and point-to-point messages. The kind, the mesh axis (by process group), the phase and the bytes are as in
`planner.ir.strategy.Collective`; equal ones are counted. A message is counted by its sender and by its receiver.

    with record(job) as recorder:
        job.step(batch)
    compare(recorder.collectives(), plan.prediction.collectives[stage])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.ir.mesh import AXES, DATA_AXES
from planner.ir.strategy import Collective
from planner.runtime.job import Job, Progress
from planner.runtime.world import World

Sizes = Callable[[tuple[Any, ...]], int]


def _nbytes(value: Any) -> int:
    """Bytes of a tensor, or of all tensors of nested lists."""
    if isinstance(value, Tensor):
        return int(value.numel() * value.element_size())
    return sum(map(_nbytes, value))


def _first(args: tuple[Any, ...]) -> int:
    return _nbytes(args[0])


def _second(args: tuple[Any, ...]) -> int:
    return _nbytes(args[1])


def _gathered(args: tuple[Any, ...]) -> int:
    """A functional all_gather's result: its input from every rank."""
    return _nbytes(args[0]) * int(args[1])


_OPS: Mapping[str, tuple[str, Sizes]] = {
    "_c10d_functional::all_reduce": ("all_reduce", _first),
    "_c10d_functional::all_reduce_": ("all_reduce", _first),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", _first),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", _gathered),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", _gathered),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", _first),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", _first),
    "_c10d_functional::all_to_all_single": ("all_to_all", _first),
    "_c10d_functional::broadcast": ("broadcast", _first),
    "_dtensor::shard_dim_alltoall": ("all_to_all", _first),
    "c10d::allreduce_": ("all_reduce", _first),
    "c10d::allreduce_coalesced_": ("all_reduce", _first),
    "c10d::_allgather_base_": ("all_gather", _first),
    "c10d::allgather_": ("all_gather", _first),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", _first),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", _second),
    "c10d::reduce_scatter_": ("reduce_scatter", _second),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", _second),
    "c10d::alltoall_base_": ("all_to_all", _second),
    "c10d::alltoall_": ("all_to_all", _second),
    "c10d::broadcast_": ("broadcast", _first),
    "c10d::send": ("p2p", _first),
    "c10d::recv_": ("p2p", _first),
}
"""Kind and counted bytes of every operator that communicates; in-place ones write into their first argument."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Counts collectives while it is active."""

    def __init__(self, world: World, progress: Progress) -> None:
        super().__init__()
        self.axes = axis_ranks(world)
        self.pp_rank = world.coordinate("pp")
        self.progress = progress
        self.counts: Counter[Collective] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor first turns itself into local operators and collectives
        found = _OPS.get(func._schema.name)
        if found is not None and group_of(args).size() > 1:
            kind, sizes = found
            self.counts[Collective(kind, self.axis(args), self.phase(func, args), sizes(args))] += 1
        return func(*args, **(kwargs or {}))

    def axis(self, args: tuple[Any, ...]) -> str:
        """The mesh axis of a collective, by the ranks of its group; "world" if they are no axis of the mesh."""
        return self.axes.get(tuple(dist.get_process_group_ranks(group_of(args))), "world")

    def phase(self, func: Any, args: tuple[Any, ...]) -> str:
        """Where in the step a collective belongs: what the job says, else whether autograd is running."""
        if self.progress.phase != "idle":
            return self.progress.phase
        if func._schema.name in ("c10d::send", "c10d::recv_"):
            later = int(args[2]) > self.pp_rank
            return "forward" if later == (func._schema.name == "c10d::send") else "backward"
        return "forward" if torch._C._current_graph_task_id() == -1 else "backward"

    def collectives(self) -> tuple[Collective, ...]:
        """What was recorded, sorted."""
        return tuple(sorted(replace(collective, count=count) for collective, count in self.counts.items()))


def axis_ranks(world: World) -> dict[tuple[int, ...], str]:
    """Mesh axes by the ranks of this rank's group on them: single ones, and the data axes that are joined; those of one rank do not
    communicate."""
    degrees, rank = world.degrees, dist.get_rank()
    several = [axes for length in range(2, len(DATA_AXES) + 1) for axes in combinations(DATA_AXES, length)]
    names = dict.fromkeys(degrees.joined(axes) for axes in (*((axis,) for axis in AXES), *several))
    return {degrees.group(rank, name): name for name in names if degrees.degree(name) > 1}


def group_of(args: tuple[Any, ...]) -> dist.ProcessGroup:
    """The group among a collective's arguments: an object, or for a functional one the name that comes last."""
    boxed = (arg for arg in args if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()))
    found = next(boxed, None)
    if found is not None:
        return dist.ProcessGroup.unbox(found)
    return _resolve_process_group([arg for arg in args if isinstance(arg, str)][-1])


def record(job: Job) -> Recorder:
    """A context that counts the collectives of `job`."""
    return Recorder(job.world, job.progress)


def compare(recorded: Iterable[Collective], predicted: Iterable[Collective]) -> tuple[str, ...]:
    """One line per kind, axis, phase and size of which the two lists count different numbers; empty if they agree."""
    found, expected = totals(recorded), totals(predicted)
    return tuple(
        f"{key.kind} on {key.axis} in {key.phase}, {key.nbytes} bytes: recorded {found[key]}, predicted {expected[key]}"
        for key in sorted(found.keys() | expected.keys())
        if found[key] != expected[key]
    )


def totals(collectives: Iterable[Collective]) -> Counter[Collective]:
    """Counts by collective; those over a single rank or of no bytes do not occur."""
    counts: Counter[Collective] = Counter()
    for collective in collectives:
        counts[replace(collective, count=1)] += collective.count
    return counts
