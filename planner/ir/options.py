"""What a user may ask of the planner. The defaults are what `autopar plan model.py --gpus 8` means."""

from __future__ import annotations

from dataclasses import dataclass

RECOMPUTE = ("auto", "none", "full")
SCHEDULES = ("auto", "gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class Options:
    """`global_batch` is in samples per step (8 per device unless given); `mesh` pins degrees by axis; `memory_bytes` lowers the device's
    memory; `zero` pins the ZeRO level; `reduce_dtype` is that of gradient reductions; `max_seconds` ends the search with the best plan so
    far, 0 means no limit; `cannot_cut` is the reason why the model cannot be cut into pipeline stages, empty if none is known."""

    global_batch: int | None = None
    mesh: tuple[tuple[str, int], ...] = ()
    memory_bytes: int | None = None
    recompute: str = "auto"
    schedule: str = "auto"
    zero: int | None = None
    reduce_dtype: str = "float32"
    max_seconds: float = 0.0
    cannot_cut: str = ""
