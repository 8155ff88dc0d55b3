"""What forward and backward compute in: bfloat16 for float32 models on GPUs unless the user says otherwise."""

from __future__ import annotations

from planner.trace.source import ModelSource

CHOICES = {"auto": "", "model": "", "bf16": "bfloat16", "fp16": "float16"}
"""Choices on the command line, with the dtype where there is one."""


def compute_dtype(precision: str, *, source: ModelSource, backend: str) -> str | None:
    """The dtype to record with; None keeps the model's own."""
    if precision == "auto":
        return "bfloat16" if backend == "nccl" and _is_float32(source) else None
    return CHOICES[precision] or None


def _is_float32(source: ModelSource) -> bool:
    import torch

    with torch.device("meta"):
        first = next(source.model().parameters(), None)
    return first is not None and first.dtype == torch.float32
