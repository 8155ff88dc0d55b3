"""What forward and backward compute in: bfloat16 for float32 models on GPUs unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CHOICES = {"auto": "", "model": "", "bf16": "bfloat16", "fp16": "float16"}
"""Choices on the command line, with the dtype where there is one."""


def compute_dtype(precision: str, *, model: Callable[[], Any], backend: str) -> str | None:
    """The dtype to record with; None keeps the model's own. `model` builds the module."""
    if precision == "auto":
        return "bfloat16" if backend == "nccl" and _is_float32(model) else None
    return CHOICES[precision] or None


def _is_float32(model: Callable[[], Any]) -> bool:
    import torch

    with torch.device("meta"):
        first = next(model().parameters(), None)
    return first is not None and first.dtype == torch.float32
