"""How many bytes a rank holds: training state by ZeRO level, activations in flight by schedule, and the part that is not ours to use.

ZeRO levels as the runtime executes them with torch's FSDP2:

    level  parameters                          gradients
    0      whole, and a whole copy if dp > 1   whole
    1      shard, and a whole copy             reduced on the last microbatch: several microbatches accumulate whole ones
    2      shard, and a whole copy             reduced every microbatch: shard
    3      shard, and a copy of two blocks     as 2

Copies are in the compute dtype: FSDP2 computes on a gathered or cast copy, also where it only replicates (torch 2.13: the all-gather output
of a group of one is storage of its own). At level 3 one block is in use and one prefetched. Whole gradients accumulate in the reduce dtype.
Wherever gradients are reduced, those of one block stand beside them twice: in the compute dtype, and packed in the reduce dtype. A pipeline
that accumulates whole gradients does so at every level. Leaves out: padding of uneven shards beyond rounding up, and the order in which
blocks are freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from costmodels.errors import HardwareError
from costmodels.hardware import Device


@dataclass(frozen=True, slots=True)
class StatePreset:
    """Bytes per parameter of weights, gradients and optimizer states; `per_parameter_byte` counts them in sizes of the parameter's dtype."""

    weight: int
    gradient: int
    optimizer: int
    per_parameter_byte: bool
    source: str

    def bytes_of(self, param_bytes: int) -> tuple[int, int, int]:
        """Bytes per parameter of weight, gradient and optimizer states where the parameter's dtype has `param_bytes`."""
        unit = param_bytes if self.per_parameter_byte else 1
        return self.weight * unit, self.gradient * unit, self.optimizer * unit


STATE_PRESETS = MappingProxyType(
    {
        "torch-adamw": StatePreset(1, 1, 2, True, "torch.optim.AdamW: two states in the dtype of the parameter"),
        "torch-sgd": StatePreset(1, 1, 0, True, "torch.optim.SGD without momentum"),
        "torch-sgd-momentum": StatePreset(1, 1, 1, True, "torch.optim.SGD with momentum"),
        "megatron": StatePreset(2, 4, 12, False, "Megatron-LM theoretical_memory_usage.py: bf16 weight; fp32 gradient, weight and 2 states"),
        "zero-offload": StatePreset(2, 2, 12, False, "ZeRO-Offload, arXiv:2101.06840: fp16 weight and gradient; fp32 weight and 2 states"),
        "elixir": StatePreset(2, 0, 12, False, "Elixir, arXiv:2212.05339: fp16 gradients take the place of the weights"),
    }
)
"""Training state per parameter, by name."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers of elements on one rank before sharding over data parallel ranks: all, those that train, and those of the largest block that
    is gathered at once."""

    numel: int
    trainable_numel: int
    block_numel: int


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per element of parameters, of their copy for computing, and of gradients while they are reduced."""

    param_bytes: int
    compute_bytes: int
    reduce_bytes: int


@dataclass(frozen=True, slots=True)
class Sharding:
    """ZeRO level 0-3 over `dp_shard` ranks, all of it `dp_replicate` times. `accumulates` says that gradients of several backward passes are
    summed before they are reduced: more than one microbatch at levels 0 and 1, any pipeline at every level."""

    zero: int
    dp_shard: int
    accumulates: bool
    dp_replicate: int = 1


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes on one rank. `parameters` includes gathered and cast copies, `gradients` what is not yet reduced."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def state_bytes(weights: Weights, *, precision: Precision, sharding: Sharding, preset: str = "torch-adamw") -> StateBytes:
    """Bytes of training state on one rank. Raises HardwareError for an unknown preset or ZeRO level."""
    if preset not in STATE_PRESETS:
        raise HardwareError(f"state preset {preset!r} is unknown; known are {', '.join(STATE_PRESETS)}")
    if sharding.zero not in (0, 1, 2, 3):
        raise HardwareError(f"ZeRO level {sharding.zero} does not exist; use 0, 1, 2 or 3")
    weight, gradient, optimizer = STATE_PRESETS[preset].bytes_of(precision.param_bytes)
    shards = sharding.dp_shard if sharding.zero else 1
    trained = _shard(weights.trainable_numel, shards)
    return StateBytes(
        parameters=weight * _shard(weights.numel, shards) + precision.compute_bytes * _copied(weights, precision=precision, sharding=sharding),
        gradients=_gradient_bytes(gradient * trained, weights, precision=precision, sharding=sharding),
        optimizer=optimizer * trained,
    )


def _shard(numel: int, shards: int) -> int:
    return -(-numel // shards)


def _has_engine(precision: Precision, sharding: Sharding) -> bool:
    """Whether FSDP2 runs at all: several data parallel ranks, or a cast."""
    return sharding.dp_shard * sharding.dp_replicate > 1 or precision.compute_bytes != precision.param_bytes


def _copied(weights: Weights, *, precision: Precision, sharding: Sharding) -> int:
    """Elements held once more in the compute dtype. With one shard there is nothing to reshard: the copy stays."""
    if not _has_engine(precision, sharding):
        return 0
    if sharding.zero == 3 and sharding.dp_shard > 1:
        return min(2 * weights.block_numel, weights.numel)
    return weights.numel


def _gradient_bytes(reduced: int, weights: Weights, *, precision: Precision, sharding: Sharding) -> int:
    """Gradients at the peak: `reduced` bytes after the reduction, or whole ones before it, and one block on the way."""
    if not _has_engine(precision, sharding):
        return reduced
    moving = min(weights.block_numel, weights.trainable_numel) * (precision.compute_bytes + precision.reduce_bytes)
    whole = precision.reduce_bytes * weights.trainable_numel if sharding.accumulates else 0
    return max(reduced, whole) + moving


def in_flight(schedule: str, *, rank: int, ranks: int, microbatches: int, virtual: int = 1) -> int:
    """Activations of microbatches (of chunks, 1/virtual of a stage each, if interleaved) that rank `rank` of the pipeline holds at the peak.

    GPipe m; 1F1B min(p - r, m); interleaved min(2 (p - r - 1) + (v - 1) p + 1, m v). Source: SC21 schedules.
    """
    if schedule == "gpipe":
        return microbatches
    if schedule == "1f1b" or (schedule == "interleaved" and virtual == 1):
        return min(ranks - rank, microbatches)
    if schedule == "interleaved":
        return min(2 * (ranks - rank - 1) + (virtual - 1) * ranks + 1, microbatches * virtual)
    raise HardwareError(f"schedule {schedule!r} has no closed form of its memory; simulate it")


def reserve_bytes(device: Device) -> int:
    """Memory that a plan may not count on: driver, libraries and communicators, and what the allocator loses to fragmentation."""
    return device.context_bytes + round(device.fragmentation * device.memory_bytes)
