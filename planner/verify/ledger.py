"""What a rank holds while it steps: every storage with its bytes, from birth to death, and what it is for.

    held after event e, of kind k  =  sum of the changes of storages of kind k up to e;   peak = the e at which the sum over k is largest

A dispatch mode sees each operator below autograd and DTensor and enters the storages of its results; a weak reference tells when one dies,
and a storage that is resized in place (FSDP2 does so) is seen at the resize. Bytes are those that a program asks an allocator for: rounding,
fragmentation and the buffers of a communication library are left out.

Kinds are learned at any time in a storage's life: parameters, gradients, optimizer states and buffers by asking the job; the copies that FSDP2
gathers (parameters) and reduces (gradients) by the operators that handle them. All else is activations: saved ones, temporary ones, the batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from planner.runtime.placements import local

KINDS = ("parameters", "gradients", "optimizer", "buffers", "activations")

_GATHERING = ("fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "c10d::_allgather_base_")
_REDUCING = ("fsdp::chunk_cat", "c10d::_reduce_scatter_base_")


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was held at once, and what it consisted of, by KINDS."""

    nbytes: int
    kinds: tuple[int, ...]

    def of(self, kind: str) -> int:
        return self.kinds[KINDS.index(kind)]


class Ledger(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Keeps the books while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}
        self.alive: dict[int, weakref.ref[Any]] = {}
        self.sizes: list[int] = []
        self.kinds: list[str] = []
        self.changes: list[tuple[int, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in planner.verify.fake_job

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor first turns itself into local operators
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.prim.device.default:
            return result
        for tensor in tensors(result):
            self.number(tensor.untyped_storage())
        name = func._schema.name
        if name in _GATHERING:
            self.enter((args, kwargs, result), kind="parameters")
        elif name in _REDUCING:
            self.enter((args, kwargs, result), kind="gradients")
        return result

    def number(self, storage: Any) -> int:
        """The storage's number in the books; a new one where it is seen for the first time."""
        key = id(storage)
        if key in self.numbers:
            return self.numbers[key]
        number = self.numbers[key] = len(self.sizes)
        self.alive[number] = weakref.ref(storage, lambda _: self.close(key))
        self.sizes.append(0)
        self.kinds.append("activations")
        self.change(number, storage.nbytes())
        return number

    def change(self, number: int, nbytes: int) -> None:
        """Notes that a storage now has `nbytes`."""
        if nbytes != self.sizes[number]:
            self.changes.append((number, nbytes - self.sizes[number]))
            self.sizes[number] = nbytes

    def close(self, key: int) -> None:
        """Notes that a storage is gone."""
        number = self.numbers.pop(key)
        self.change(number, 0)
        del self.alive[number]

    def enter(self, tree: Any, *, kind: str) -> None:
        """Says what the storages of the tensors in `tree` are for; the first answer counts."""
        for tensor in tensors(tree):
            number = self.number(local(tensor).untyped_storage())
            if self.kinds[number] == "activations":
                self.kinds[number] = kind

    def peak(self) -> Peak:
        """The peak so far."""
        held = dict.fromkeys(KINDS, 0)
        most, total = dict(held), 0
        highest = 0
        for number, change in self.changes:
            held[self.kinds[number]] += change
            total += change
            if total > highest:
                highest, most = total, dict(held)
        return Peak(highest, tuple(most[kind] for kind in KINDS))

    @contextmanager
    def open(self) -> Iterator[None]:
        """The mode, and sight of storages that are resized in place."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, nbytes: int) -> Any:
            number = self.number(storage)
            result = resize(storage, nbytes)
            self.change(number, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resized
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = resize


def tensors(tree: Any) -> Iterable[Tensor]:
    """The tensors among the leaves of a tree."""
    if isinstance(tree, Tensor):
        return (tree,)
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def states(optimizer: torch.optim.Optimizer) -> Sequence[Tensor]:
    """The tensors that an optimizer keeps."""
    kept: Mapping[Any, Mapping[str, Any]] = optimizer.state
    return [value for state in kept.values() for value in state.values() if isinstance(value, Tensor)]
