"""What DTensor does with one operator call: every rank of a fake process group in this process, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor import placement_types as types
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.ir.graph import Op, Tensor, TensorArg
from planner.ir.placement import Placement
from planner.runtime.attention import register

_KINDS = {
    "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "all_gather_into_tensor": "all_gather", "allgather_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all", "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast", "scatter_": "scatter",
}  # fmt: skip
_SILENT = {"wait_tensor", "_wrap_tensor_autograd"}


@dataclass(frozen=True)
class Spec:
    """An input: integers below `high` where it is set, floats otherwise."""

    shape: tuple[int, ...]
    grad: bool = True
    high: int = 0
    dtype: torch.dtype = torch.float64
    positive: bool = False

    def make(self, generator: torch.Generator) -> torch.Tensor:
        if self.high:
            return torch.randint(0, self.high, self.shape, generator=generator)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, self.shape, generator=generator).bool()
        if self.dtype.is_complex:
            return torch.randn(self.shape, generator=generator, dtype=self.dtype)
        value = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        return (value.abs() + 0.5 if self.positive else value).to(self.dtype)


@dataclass(frozen=True)
class Case:
    """One call of an aten operator."""

    target: str
    inputs: tuple[Spec, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        shapes = "_".join("x".join(map(str, spec.shape)) + ("" if spec.grad else "n") for spec in self.inputs)
        rest = "_".join(str(arg).replace(" ", "") for arg in self.args if not isinstance(arg, TensorArg | list))
        return f"{self.target}-{shapes}-{rest}"

    @property
    def defined(self) -> bool:
        """Whether the result has a value that is the same in every run."""
        return not any(word in self.target for word in ("empty", "rand"))

    def call(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        packet, _, overload = self.target.removeprefix("aten.").rpartition(".")
        function = getattr(getattr(torch.ops.aten, packet), overload)
        kwargs = {key: _resolved(value, tensors) for key, value in self.kwargs.items()}
        result = function(*(_resolved(arg, tensors) for arg in self.args), **kwargs)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def tensors(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(7)
        return [spec.make(generator).requires_grad_(spec.grad and spec.dtype != torch.bool and not spec.high) for spec in self.inputs]

    def graph(self) -> tuple[Op, dict[str, Tensor]]:
        """The call as the planner sees it."""
        tensors = self.tensors()
        outputs = self.call(tensors)
        named = {f"i{k}": tensor for k, tensor in enumerate(tensors)} | {f"o{k}": tensor for k, tensor in enumerate(outputs)}
        inputs, results = tuple(n for n in named if n[0] == "i"), tuple(n for n in named if n[0] == "o")
        op = Op("op", self.target, inputs, results, tuple(_frozen(arg) for arg in self.args), "module", 0)
        rows = {n: Tensor(n, tuple(t.shape), str(t.dtype).removeprefix("torch."), n, t.requires_grad) for n, t in named.items()}
        return op, rows


def _resolved(arg: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(arg, TensorArg):
        return tensors[arg.index]
    if isinstance(arg, list | tuple):
        return [_resolved(item, tensors) for item in arg]
    return arg


def _frozen(arg: Any) -> Any:
    return tuple(_frozen(item) for item in arg) if isinstance(arg, list | tuple) else arg


class Recorder(TorchDispatchMode):
    """Collectives as (kind, bytes of the whole tensor on one rank)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # DTensor goes first, so that what it calls comes here
        result = func(*args, **(kwargs or {}))
        namespace, _, name = func._schema.name.partition("::")
        if namespace in ("_c10d_functional", "c10d", "_dtensor") and name not in _SILENT:
            before, after = _bytes(args), _bytes(result)
            self.seen.append((_KINDS[name], after if _KINDS[name] == "all_gather" else before))
        return result


def _bytes(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


@contextmanager
def ranks(degree: int) -> Iterator[DeviceMesh]:
    """A mesh of `degree` ranks that all live here."""
    register()
    dist.init_process_group("fake", rank=0, world_size=degree, store=FakeStore())
    try:
        with LocalTensorMode(degree):
            yield init_device_mesh("cpu", (degree,), mesh_dim_names=("tp",))
    finally:
        dist.destroy_process_group()


def to_torch(placement: Placement) -> types.Placement:
    if placement.is_shard:
        return Shard(placement.dim)
    return Replicate() if placement.is_replicate else Partial("sum")


def from_torch(placement: types.Placement) -> Placement:
    if isinstance(placement, types._StridedShard):
        return Placement("strided", placement.dim)
    if isinstance(placement, types._MaskPartial):
        return Placement("P", 0, "mask")
    if isinstance(placement, Shard):
        return Placement("S", placement.dim)
    return Placement("R") if isinstance(placement, Replicate) else Placement("P", 0, placement.reduce_op)


def distribute(value: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> DTensor:
    """`value` as a DTensor without any communication; summands are unequal."""
    degree = mesh.size()
    if placement.is_shard:
        locals_ = [part.contiguous() for part in value.detach().chunk(degree, placement.dim)]
    elif placement.is_partial:
        noise = [torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(rank)) for rank in range(degree - 1)]
        locals_ = [*noise, value.detach() - sum(noise)]
    else:
        locals_ = [value.detach().clone() for _ in range(degree)]
    local = LocalTensor(dict(enumerate(locals_)))
    return DTensor.from_local(local, mesh, [to_torch(placement)], run_check=False).requires_grad_(value.requires_grad)


def whole(tensor: DTensor) -> torch.Tensor:
    """The value that the ranks' parts stand for; replicas must agree."""
    placement = from_torch(tensor.placements[0])
    if placement.kind == "strided" or placement.reduction == "mask":
        return whole(tensor.redistribute(placements=[Replicate()]))
    parts = [part.detach() for part in tensor.to_local()._local_tensors.values()]
    if placement.is_shard:
        return torch.cat(parts, placement.dim)
    if placement.is_partial:
        return torch.stack(parts).sum(0)
    assert all(torch.allclose(part, parts[0], equal_nan=True) for part in parts[1:]), "replicas differ"
    return parts[0]


@dataclass(frozen=True)
class Observed:
    """Placements and whole values of outputs and of the gradients of inputs (None where there is none), and the collectives."""

    outputs: tuple[Placement, ...]
    gradients: tuple[Placement | None, ...]
    forward: tuple[tuple[str, int], ...]
    backward: tuple[tuple[str, int], ...]
    values: tuple[torch.Tensor, ...]
    gradient_values: tuple[torch.Tensor | None, ...]


def cotangents(outputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients that come in from above, one per output that has one."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(out.shape, dtype=out.dtype, generator=generator) if out.requires_grad else None for out in outputs]


def reference(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Outputs and input gradients on one device."""
    tensors = case.tensors()
    outputs = case.call(tensors)
    return [out.detach() for out in outputs], _gradients(tensors, outputs, cotangents(outputs))


def _gradients(inputs: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    roots = [(out, gradient) for out, gradient in zip(outputs, incoming, strict=True) if gradient is not None]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    if not roots or not leaves:
        return [None for _ in inputs]
    found = iter(torch.autograd.grad([out for out, _ in roots], leaves, [g for _, g in roots], allow_unused=True))
    return [next(found) if tensor.requires_grad else None for tensor in inputs]


def observe(case: Case, mesh: DeviceMesh, inputs: list[Placement], gradients: list[Placement]) -> Observed:
    """Run `case` with inputs placed as `inputs` and, backward, output gradients placed as `gradients`."""
    plain = case.tensors()
    incoming = cotangents(case.call(plain))
    tensors = [distribute(value, placement, mesh) for value, placement in zip(plain, inputs, strict=True)]
    with Recorder() as forward:
        outputs = case.call(tensors)
    placed = [None if g is None else distribute(g, placement, mesh) for g, placement in zip(incoming, gradients, strict=True)]
    with Recorder() as backward:
        found = _gradients(tensors, outputs, placed)
    return Observed(
        tuple(from_torch(out.placements[0]) for out in outputs),
        tuple(None if g is None else from_torch(g.placements[0]) for g in found),
        tuple(forward.seen),
        tuple(backward.seen),
        tuple(whole(out) for out in outputs) if case.defined else (),
        tuple(None if g is None else whole(g) for g in found),
    )
