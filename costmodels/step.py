"""Closed forms of a training step: pipeline, overlap, optimizer.

Pipeline with unequal stages: stage s is busy for m (f_s + b_s), cannot begin before its first input has passed the stages in front of it, and
its last gradient has to pass them on the way back. So no schedule that keeps the batch together is faster than

    max over s of  sum_{i<s} (f_i + b_i + 2 h) + m (f_s + b_s),        h = time of one p2p

and than one microbatch on its own. With equal stages and h = 0 this is (m + p - 1)(f + b), which GPipe and 1F1B reach.
Bubbles: Narayanan et al., SC21 (arXiv:2104.04473).
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.compute import memory_s
from costmodels.hardware import Device


def pipeline_s(forward_s: Sequence[float], backward_s: Sequence[float], microbatches: int, *, p2p_s: float = 0.0) -> float:
    """Least seconds of a pipeline with the given times per stage and microbatch. A bound, exact for equal stages and free p2p."""
    alone = list(map(sum, zip(forward_s, backward_s, strict=True)))
    longest, before = 0.0, 0.0
    for stage in alone:
        longest = max(longest, before + microbatches * stage)
        before += stage + 2 * p2p_s
    return max(longest, before - 2 * p2p_s)


def bubble_of_ideal(stages: int, microbatches: int, virtual: int = 1) -> float:
    """Idle time over ideal time of GPipe, 1F1B and interleaved 1F1B with equal stages: (p - 1) / (v m)."""
    return (stages - 1) / (virtual * microbatches)


def bubble_of_total(stages: int, microbatches: int, virtual: int = 1) -> float:
    """Idle time over total time: (p - 1) / (v m + p - 1)."""
    return (stages - 1) / (virtual * microbatches + stages - 1)


def exposed_s(communication_s: float, compute_s: float, overlap: float) -> float:
    """What is left of a communication of which at most the fraction `overlap` of `compute_s` can hide."""
    return max(0.0, communication_s - overlap * compute_s)


def optimizer_s(*, parameter_bytes: float, gradient_bytes: float, optimizer_bytes: float, device: Device) -> float:
    """Seconds of a fused optimizer step: gradients are read, parameters and states read and written, at the memory's rate."""
    traffic = gradient_bytes + 2 * (parameter_bytes + optimizer_bytes)
    return max(device.launch_s, memory_s(traffic, device=device)) if traffic else 0.0
