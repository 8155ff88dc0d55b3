"""The layouts of tensors that no op writes: parameters, buffers, model inputs."""

from __future__ import annotations

from planner.ir.placement import RP, Layout, R, S


def layouts(shape: tuple[int, ...], *, requires_grad: bool, degree: int) -> tuple[Layout, ...]:
    """R; R/P if the tensor has a gradient; S(d) for every dim that `degree` divides. Degree 1 leaves R."""
    if degree == 1:
        return (R,)
    whole = (R, RP) if requires_grad else (R,)
    return whole + tuple(S(dim) for dim, size in enumerate(shape) if size and size % degree == 0)
