"""Redistributions at the borders of a plan: one autograd function per border, forward for the value, backward for the gradient.

A border is a tensor that enters or leaves a module, named `FQN:input` or `FQN:output` and, where that is not a single tensor, a pytree
path: `encoder:input['mask']`, `:output[0]`. The hooks sit on the named module; both directions assert the placement they find, so that what
executes is what was priced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import placement_types as torch_placements
from torch.utils import _pytree as pytree

from planner.errors import MismatchError, PlanError
from planner.ir.names import matches
from planner.ir.plan import Activation
from planner.runtime.placements import to_torch

_BORDER = re.compile(r"(?P<fqn>[^:]*):(?P<side>input|output)(?P<path>.*)")


@dataclass(frozen=True, slots=True)
class Border:
    """A border of a plan: module glob, side ("input" or "output"), pytree path in torch's `keystr` form, its placements, and the mesh along
    which they are."""

    name: str
    module: str
    side: str
    path: str
    activation: Activation
    mesh: DeviceMesh | None = None


def parse_border(name: str, activation: Activation, mesh: DeviceMesh | None = None) -> Border:
    """The parts of a border's name; PlanError if it is not of the form `FQN:input['x']`."""
    match = _BORDER.fullmatch(name)
    if match is None:
        raise PlanError(f"border {name!r} is not of the form FQN:input or FQN:output, followed by a path such as ['mask'] or [0]")
    return Border(name, match["fqn"], match["side"], match["path"], activation, mesh)


def agrees(found: torch_placements.Placement, expected: torch_placements.Placement) -> bool:
    """Equality, where every kind of pending sum counts as Partial("sum"): embeddings make a masked one of their own."""
    if found.is_partial() and expected.is_partial():
        return bool(found.reduce_op == expected.reduce_op)
    return bool(found == expected)


def redistribute(tensor: Tensor, border: str, source: torch_placements.Placement, target: torch_placements.Placement) -> Tensor:
    """`tensor` moved from `source` to `target`; MismatchError if it is not placed as `source`."""
    if not isinstance(tensor, DTensor):
        raise MismatchError(f"border {border}: expected {source}, found a tensor outside the mesh; plan this model again")
    (found,) = tensor.placements
    if not agrees(found, source):
        raise MismatchError(f"border {border}: expected {source}, found {found}; the plan does not fit this model or this torch, plan again")
    if source == target:
        return tensor
    return tensor.redistribute(placements=[target])


class _Cross(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """The identity on the value that a border describes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, border: Border) -> Tensor:
        ctx.border = border
        placed = border.activation
        moved = redistribute(tensor, border.name, to_torch(placed.value_from), to_torch(placed.value))
        return moved.view_as(moved) if moved is tensor else moved

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        placed = ctx.border.activation
        return redistribute(grad, f"{ctx.border.name} (gradient)", to_torch(placed.grad_from), to_torch(placed.grad)), None


def cross(tensor: Tensor, border: Border) -> Tensor:
    """`tensor` on the other side of `border`, with its gradient's way back recorded."""
    crossed: Tensor = _Cross.apply(on_mesh(tensor, border), border)
    return crossed


def on_mesh(tensor: Tensor, border: Border) -> Tensor:
    """`tensor`, replicated on the mesh where the model made it from nothing (a table of positions) and the border expects it whole.

    No parameter flows into such a tensor; its gradient ends here.
    """
    if isinstance(tensor, DTensor) or border.mesh is None or not border.activation.value_from.is_replicate:
        return tensor
    placed = DTensor.from_local(tensor.detach(), border.mesh, [Replicate()], run_check=False)
    return placed.requires_grad_(tensor.requires_grad)


def install(module: nn.Module, activations: tuple[tuple[str, Activation], ...], mesh: DeviceMesh | None = None) -> None:
    """Hooks the borders of a plan onto the modules of `module`; a glob whose copies live on other stages is simply absent, and a border that
    names one copy goes before the glob that stands for it."""
    borders = [parse_border(name, activation, mesh) for name, activation in activations]
    named = {(border.module, border.side, border.path) for border in borders}
    for border in borders:
        for fqn, owner in module.named_modules():
            if fqn == border.module or (matches(border.module, fqn) and (fqn, border.side, border.path) not in named):
                hook(owner, border)


def hook(owner: nn.Module, border: Border) -> None:
    """Registers one border on one module."""
    if border.side == "output":
        owner.register_forward_hook(lambda _module, _args, output: at_path(output, border))
        return

    def pre_hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return cross_input(args, kwargs, border)

    owner.register_forward_pre_hook(pre_hook, with_kwargs=True)


def cross_input(args: tuple[Any, ...], kwargs: dict[str, Any], border: Border) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with the named one across `border`: `[0]` is the first positional one, `['x']` the keyword x."""
    if not border.path and len(args) == 1 and not kwargs:
        return (at_path(args[0], border),), kwargs
    if border.path.startswith("['"):
        return args, at_path(kwargs, border)
    return at_path(args, border), kwargs


def at_path(tree: Any, border: Border) -> Any:
    """`tree` with the leaf at the border's path crossed; MismatchError if there is no such leaf."""
    leaves, spec = pytree.tree_flatten_with_path(tree)
    crossed = [cross(leaf, border) if pytree.keystr(path) == border.path else leaf for path, leaf in leaves]
    if all(pytree.keystr(path) != border.path for path, _ in leaves):
        found = ", ".join(pytree.keystr(path) or "a single value" for path, _ in leaves)
        raise MismatchError(f"border {border.name}: the module hands on {found}, nothing at {border.path or 'the top'}; plan this model again")
    return pytree.tree_unflatten(crossed, spec)
