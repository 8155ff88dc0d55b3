"""Tensors on their way across a cut: what is sent are plain local tensors, what stages compute with are DTensors where tp > 1.

The layout of a crossing tensor is that of the module border it leaves by. Value and gradient have equal local shapes in every layout that has a
meaning (see planner.ir.placement), so one description serves both ways, and a tensor split over tp sends 1/tp of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from planner.errors import MismatchError
from planner.ir.names import lookup
from planner.ir.placement import Layout, R
from planner.ir.plan import Plan
from planner.runtime.placements import local, to_torch
from planner.runtime.stage import Value


def cut_layouts(plan: Plan, values: Sequence[Value]) -> tuple[Layout, ...]:
    """The layout of each crossing tensor: as handed on by the border it leaves by, else as it arrives at the border it enters by, else R/R."""
    return tuple(layout_of(plan, value) for value in values)


def layout_of(plan: Plan, value: Value) -> Layout:
    """See `cut_layouts`."""
    left = lookup(plan.activations, value.border) if value.border else None
    if left is not None:
        return Layout(left.value, left.grad_from)
    entered = lookup(plan.activations, value.reader) if value.reader else None
    return R if entered is None else Layout(entered.value_from, entered.grad)


@dataclass(frozen=True, slots=True)
class Crossing:
    """One tensor at one cut: `shape` is that of the whole tensor, `local_shape` of what one rank sends. `mesh` is the tensor-parallel mesh,
    None where tp = 1."""

    value: Value
    layout: Layout
    mesh: DeviceMesh | None

    @property
    def local_shape(self) -> tuple[int, ...]:
        shape = list(self.value.shape)
        placement = self.layout.value
        if self.mesh is not None and placement.is_shard:
            shape[placement.dim] //= self.mesh.size()
        return tuple(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one message."""
        return prod(self.local_shape) * int(self.value.dtype.itemsize)

    def buffer(self, device: torch.device) -> Tensor:
        """Room for one message."""
        return torch.empty(self.local_shape, dtype=self.value.dtype, device=device)

    def enter(self, received: Tensor) -> Tensor:
        """A received value as a leaf of this stage's autograd graph."""
        return self.placed(received, self.layout.value).requires_grad_(self.value.requires_grad)

    def leave(self, made: Tensor) -> Tensor:
        """A value of this stage in the layout that it is sent in; MismatchError if it is not what the plan's inputs lead to."""
        if tuple(made.shape) != self.value.shape or made.dtype != self.value.dtype:
            raise MismatchError(
                f"a tensor at a pipeline cut ({self.value.border or self.value.name}) is {tuple(made.shape)} {made.dtype} instead of "
                f"{self.value.shape} {self.value.dtype}; pass microbatches with the shapes that the plan was made for"
            )
        return self.moved(made, self.layout.value)

    def enter_grad(self, received: Tensor) -> Tensor:
        """A received gradient."""
        return self.placed(received, self.layout.grad)

    def leave_grad(self, grad: Tensor | None, device: torch.device) -> Tensor:
        """The local gradient to send; zeros where the value was not used."""
        if grad is None:
            return self.buffer(device).zero_()
        return local(self.moved(grad, self.layout.grad)).to(self.value.dtype)

    def placed(self, tensor: Tensor, placement: object) -> Tensor:
        if self.mesh is None:
            return tensor
        shape = torch.Size(self.value.shape)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(tensor, self.mesh, [to_torch(placement)], run_check=False, shape=shape, stride=stride)  # type: ignore[arg-type]

    def moved(self, tensor: Tensor, placement: object) -> Tensor:
        if self.mesh is None:
            return tensor
        target = to_torch(placement)  # type: ignore[arg-type]
        if not isinstance(tensor, DTensor):
            raise MismatchError(
                f"a tensor at a pipeline cut ({self.value.border or self.value.name}) is outside the mesh; plan this model again"
            )
        return tensor if tuple(tensor.placements) == (target,) else tensor.redistribute(placements=[target])


def wire(tensor: Tensor) -> Tensor:
    """A tensor as it is sent: contiguous, complex numbers as pairs."""
    plain = tensor.detach().contiguous()
    return torch.view_as_real(plain) if plain.is_complex() else plain
