"""Random numbers of a job: which rank draws what.

Each forward of a microbatch through a stage starts from a seed of its own, a digest of

    (seed of the job, step, microbatch, stage, coordinates along dp_replicate, dp_shard, cp, ep)

so ranks with different samples or tokens draw differently, and all ranks of one tp group draw alike: what is whole on each of them stays
equal. Inside it, a draw for a tensor that is sharded along tp takes one number from the common sequence and seeds each shard by (that number,
index of the shard): shards differ, and the common sequence stays common. On CUDA, DTensor offsets its own counter by shard instead. The
caller's generators are as before after every forward. Recompute restores the generator it found, so it draws the same again.

A state is two integers, equal on every rank and valid for every mesh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import _random as dtensor_random
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from planner.errors import MismatchError
from planner.ir.mesh import DATA_AXES
from planner.runtime.world import World

_BITS = 63


@dataclass
class Draws:
    """Where the random numbers of a job come from; `step` counts the steps behind it, `place` is (stage, microbatch) during a forward, else
    None."""

    world: World
    seed: int
    step: int = 0
    place: tuple[int, int] | None = None

    @contextmanager
    def of(self, stage: int, microbatch: int) -> Iterator[None]:
        """Seeds what is drawn inside; the generators of the CPU and of this rank's device are restored afterwards."""
        rank = tuple(self.world.coordinate(axis) for axis in DATA_AXES)
        devices = [self.world.device] if self.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(digest(self.seed, self.step, microbatch, stage, *rank))
            self.place = (stage, microbatch)
            try:
                yield
            finally:
                self.place = None

    def state(self) -> dict[str, int]:
        """What a resumed job needs to draw the same."""
        return {"seed": self.seed, "step": self.step}


def read_state(state: Mapping[str, int]) -> tuple[int, int]:
    """(seed, step) of what `Draws.state` gave; MismatchError for anything else."""
    found = tuple(state.get(key) for key in ("seed", "step"))
    if not all(type(value) is int for value in found):
        raise MismatchError(f"the state of the random numbers is {dict(state)}; pass what job.rng_state() returned")
    return int(state["seed"]), int(state["step"])


def digest(*numbers: int) -> int:
    """A seed out of several numbers, non-negative and below 2^63."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> (64 - _BITS)


class ShardDraws(dtensor_random._RNGStateTracker):  # type: ignore[misc]  # torch is untyped here
    """What DTensor asks before a random operator on the CPU, for which it has nothing of its own."""

    def __init__(self) -> None:
        self._use_distribute_region = True

    @contextmanager
    def _distribute_region(self, spec: DTensorSpec, generator: torch.Generator | None = None) -> Iterator[None]:
        """The draw of one shard. With a generator of the user's own, that one gives the common number; shards then follow from it."""
        common = torch.empty((), dtype=torch.int64).random_(generator=generator)
        if isinstance(common, FakeTensor):  # a run without values draws none
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(digest(int(common), shard_index(spec)))
            yield


def shard_index(spec: DTensorSpec) -> int:
    """Which shard of a DTensor this rank holds: equal where the same elements are held."""
    index = 0
    for dim, placement in enumerate(spec.placements):
        if placement.is_shard():
            index = index * spec.mesh.size(dim) + spec.mesh.get_local_rank(dim)
    return index


def install(world: World) -> None:
    """Gives DTensor its source of random numbers before it makes one up: that one would broadcast rank 0's state to all ranks at the first
    draw, which makes data-parallel ranks draw alike and stops a pipeline."""
    if world.device.type == "cpu":
        dtensor_random._rng_tracker = ShardDraws()
    else:
        dtensor_random._rng_tracker = dtensor_random.OffsetBasedRNGTracker(world.tp, run_state_sync=False)
