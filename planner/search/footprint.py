"""What one rank of a stage holds, summed over the stage's units: elements of parameters, activations in flight, buffers, temporaries."""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.candidates import Candidate
from planner.search.data_parallel import fsdp_units
from planner.search.price import StageMemory
from planner.search.units import PlacedParameter, PlacedUnit


def stage_memory(part: Sequence[PlacedUnit], candidate: Candidate, *, flying: int, buffer_bytes: int) -> StageMemory:
    """The sums for a stage made of `part` that holds `flying` microbatches at its peak.

    With full recompute a block keeps its input per microbatch, and one block at a time holds all its activations again.
    """
    groups = fsdp_units(part)
    again = candidate.recompute == "full"
    held = sum(unit.entry_bytes if again and unit.block else unit.saved_bytes for unit in part)
    rebuilt = max((unit.saved_bytes for unit in part if again and unit.block), default=0.0)
    working = max((unit.working_bytes for unit in part), default=0.0)
    parameters = [p for group in groups for p in group]
    return StageMemory(
        numel=_numel(parameters),
        trainable_numel=_numel([p for p in parameters if p.parameter.trainable]),
        block_numel=max(map(_numel, groups), default=0),
        activation_bytes=flying * held,
        temporary_bytes=working + rebuilt,
        buffer_bytes=buffer_bytes,
    )


def _numel(parameters: Sequence[PlacedParameter]) -> int:
    return sum(p.numel for p in parameters)
