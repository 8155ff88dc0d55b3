"""What forward and backward compute in: bfloat16 for float32 models on GPUs unless the user says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.trace.source import ModelSource

CHOICES = {"auto": "", "model": "", "bf16": "bfloat16", "fp16": "float16"}
"""Choices on the command line, with the dtype where there is one."""


def compute_dtype(precision: str, *, stored: str, backend: str) -> str | None:
    """The dtype to record with; None keeps the one that is `stored`."""
    if precision == "auto":
        return "bfloat16" if backend == "nccl" and stored == "float32" else None
    return CHOICES[precision] or None


def built_once(source: ModelSource) -> ModelSource:
    """The source with its module built now, on the meta device, for one recording: large models take a second to build."""
    import torch

    with torch.device("meta"):
        module = source.model()
    return replace(source, model=lambda: module)


def stored_dtype(source: ModelSource) -> str:
    """The dtype of the first parameter; `float32` where there is none."""
    first = next(source.model().parameters(), None)
    return "float32" if first is None else str(first.dtype).removeprefix("torch.")
