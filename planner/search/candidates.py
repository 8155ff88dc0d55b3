"""Everything that is decided outside the graph: degrees, microbatch, ZeRO level, recompute and schedule.

    devices = pp x dp_replicate x dp_shard x cp x ep x tp          global batch = dp x microbatch size x microbatches

The legality table drops what cannot run, each family with one readable reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import isqrt

from planner.errors import InfeasibleError
from planner.ir.mesh import AXES, Mesh
from planner.ir.options import Options
from planner.ir.plan import Illegal

SEARCHED = ("pp", "dp_replicate", "dp_shard", "tp")


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One combination; `recompute` names the policy of every repeated block."""

    mesh: Mesh
    microbatch_size: int
    microbatches: int
    zero: int
    recompute: str
    schedule: str

    @property
    def global_batch(self) -> int:
        return self.mesh.dp * self.microbatch_size * self.microbatches


@dataclass(frozen=True, slots=True)
class Legality:
    """What the model allows: `tp` degrees without one that shards anything are absent, each with its reason in `refused`.

    `max_stages` counts the places where the model can be cut, `microbatch_size` is fixed (0: any) where the model's shapes are not affine
    in the batch.
    """

    tp: tuple[int, ...]
    max_stages: int
    microbatch_size: int
    has_blocks: bool
    refused: tuple[Illegal, ...]


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def check_options(options: Options, *, devices: int) -> None:
    """InfeasibleError if the pinned degrees cannot multiply to the number of devices, or name no searched axis."""
    pinned = dict(options.mesh)
    for axis, degree in pinned.items():
        if axis not in AXES:
            raise InfeasibleError(f"--mesh {axis}={degree}: no such axis; the axes are {', '.join(SEARCHED)}")
        if axis not in SEARCHED and degree != 1:
            raise InfeasibleError(f"--mesh {axis}={degree}: {axis} is not planned yet; pin {', '.join(SEARCHED)} only")
        if degree < 1 or devices % degree:
            raise InfeasibleError(f"--mesh {axis}={degree} does not divide {devices} GPUs; use one of {', '.join(map(str, divisors(devices)))}")
    together = 1
    for degree in pinned.values():
        together *= degree
    if devices % together or (set(SEARCHED) <= pinned.keys() and together != devices):
        text = ",".join(f"{axis}={degree}" for axis, degree in pinned.items())
        raise InfeasibleError(f"--mesh {text} makes {together} ranks, which does not fit {devices} GPUs")


def meshes(devices: int, legality: Legality, options: Options) -> Iterator[Mesh]:
    """Every legal factorisation of `devices` that agrees with the pins, deterministic order."""
    pinned = dict(options.mesh)
    cp, ep = pinned.get("cp", 1), pinned.get("ep", 1)
    devices //= cp * ep
    for tp in (t for t in legality.tp if devices % t == 0 and pinned.get("tp", t) == t):
        for pp in divisors(devices // tp):
            if pp > (1 if options.cannot_cut else legality.max_stages) or pinned.get("pp", pp) != pp:
                continue
            dp = devices // tp // pp
            for shard in divisors(dp):
                mesh = Mesh(pp=pp, dp_replicate=dp // shard, dp_shard=shard, cp=cp, ep=ep, tp=tp)
                if pinned.get("dp_shard", shard) == shard and pinned.get("dp_replicate", mesh.dp_replicate) == mesh.dp_replicate:
                    yield mesh


def candidates(devices: int, legality: Legality, options: Options) -> tuple[tuple[Candidate, ...], tuple[Illegal, ...]]:
    """All legal candidates, and the families ruled out with their reasons."""
    check_options(options, devices=devices)
    global_batch = options.global_batch or 8 * devices
    found: list[Candidate] = []
    refused = dict.fromkeys(legality.refused)
    if options.cannot_cut:
        refused[Illegal("pp > 1", options.cannot_cut)] = None
    for mesh in meshes(devices, legality, options):
        if global_batch % mesh.dp:
            refused[Illegal(f"dp={mesh.dp}", f"the global batch of {global_batch} is not divisible by {mesh.dp} data-parallel ranks")] = None
            continue
        found.extend(_of_mesh(mesh, global_batch // mesh.dp, legality, options))
    if legality.microbatch_size:
        refused[Illegal("microbatch size", f"the model's shapes are not affine in the batch, so it is fixed at {legality.microbatch_size}")] = (
            None
        )
    if not found:
        refused |= dict.fromkeys(_contradictions(legality, options))
    return tuple(found), tuple(refused)


def _contradictions(legality: Legality, options: Options) -> Iterator[Illegal]:
    """Why pins left nothing, where no other reason says so."""
    stages = 1 if options.cannot_cut else legality.max_stages
    pp, shards = dict(options.mesh).get("pp", 1), dict(options.mesh).get("dp_shard")
    if pp > stages:
        yield Illegal(f"pp={pp}", f"the model has {stages} places where a stage can begin")
    if options.zero and shards == 1:
        yield Illegal(f"zero={options.zero}", "it shards over dp_shard, which is pinned to 1")
    if options.zero == 0 and (shards or 1) > 1:
        yield Illegal("zero=0", f"it replicates, but dp_shard is pinned to {shards}")
    if options.zero and shards is None:
        yield Illegal(f"zero={options.zero}", "it shards over dp_shard, for which the other degrees leave one rank")


def _of_mesh(mesh: Mesh, samples: int, legality: Legality, options: Options) -> Iterator[Candidate]:
    sizes = divisors(samples)
    if legality.microbatch_size:
        sizes = tuple(size for size in sizes if size == legality.microbatch_size)
    for size in sizes:
        count = samples // size
        for zero, recompute, schedule in product(
            _zero_levels(mesh, count, options), _recompute(legality, options), _schedules(mesh, count, options)
        ):
            yield Candidate(mesh, size, count, zero, recompute, schedule)


def _zero_levels(mesh: Mesh, microbatches: int, options: Options) -> Iterable[int]:
    """0 needs every rank to hold everything, 1-3 shard over dp_shard x cp x ep; 2 differs from 1 only with several microbatches."""
    several = [1, 3] if microbatches == 1 else [1, 2, 3]
    legal = ([0] if mesh.dp_shard == 1 else []) + (several if mesh.shards > 1 else [])
    return [level for level in legal if options.zero in (None, level)]


def _recompute(legality: Legality, options: Options) -> Iterable[str]:
    if not legality.has_blocks:
        return ["none"]
    return ["none", "full"] if options.recompute == "auto" else [options.recompute]


def _schedules(mesh: Mesh, microbatches: int, options: Options) -> Iterable[str]:
    """Without a pipeline the order is forward, backward, microbatch by microbatch: 1f1b. With one microbatch both are the same."""
    if mesh.pp == 1 or (microbatches == 1 and options.schedule == "auto"):
        return ["1f1b"]
    return ["1f1b", "gpipe"] if options.schedule == "auto" else [options.schedule]
