"""Which name of the graph a tensor object has at this moment.

A name belongs to a value. The table finds it by object, and for objects it has not seen (autograd's private aliases, `detach`) by the
piece of storage they look at. When an operator writes in place, the value gets a fresh name; other views of the same storage are behind
from then on, and are brought up to date on their next use by an explicit operator, so the graph reads as if nothing were ever mutated:

    same piece of storage      the new name
    as many elements           aten.view (the writer, reshaped)
    otherwise                  aten.as_strided_scatter (the old value with the written piece put in)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Piece = tuple[object, ...]
"""What a tensor looks at: storage, offset, shape, stride, dtype, conjugate and negative bits."""


def piece(tensor: torch.Tensor) -> Piece:
    """Equal for two tensors exactly if they always hold the same values."""
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


@dataclass(slots=True)
class _Write:
    name: str
    tensor: torch.Tensor


@dataclass(slots=True)
class Names:
    """The table. Objects are kept alive while it lives, so ids and storages stay unique; fake tensors weigh nothing.

    `emit(target, names, args, tensor)` records an operator whose result looks like `tensor` and returns its name; `unknown(tensor)` names a
    tensor from outside.
    """

    emit: Callable[[str, tuple[str, ...], tuple[object, ...], torch.Tensor], str]
    unknown: Callable[[torch.Tensor], str]
    by_object: dict[int, tuple[str, int]] = field(default_factory=dict)
    by_piece: dict[Piece, tuple[str, int]] = field(default_factory=dict)
    owner: dict[object, str] = field(default_factory=dict)
    writes: dict[object, list[_Write]] = field(default_factory=dict)
    alive: list[torch.Tensor] = field(default_factory=list)
    stale: dict[int, str] = field(default_factory=dict)
    """Objects that nothing may read any more, with the reason to note in `stale_reads` if something does."""
    stale_reads: set[str] = field(default_factory=set)

    def bind(self, tensor: torch.Tensor, name: str) -> None:
        """From now on `tensor` is `name`."""
        key = piece(tensor)
        entry = (name, len(self.writes.get(key[0], ())))
        self.by_object[id(tensor)] = self.by_piece[key] = entry
        self.owner.setdefault(key[0], name)
        self.alive.append(tensor)

    def bound(self, tensor: torch.Tensor) -> bool:
        """Whether the object itself has a name."""
        return id(tensor) in self.by_object

    def base(self, tensor: torch.Tensor) -> str:
        """The name of the tensor that owns the storage of `tensor`."""
        return self.owner.get(piece(tensor)[0], "")

    def of(self, tensor: torch.Tensor) -> str:
        """The current name of `tensor`."""
        if id(tensor) in self.stale:
            self.stale_reads.add(self.stale[id(tensor)])
        entry = self.by_object.get(id(tensor))
        key = piece(tensor)
        if entry is None:
            entry = self.by_piece.get(key)
            name = self.unknown(tensor) if entry is None else entry[0]
            entry = (name, len(self.writes.get(key[0], ()))) if entry is None else entry
            self.by_object[id(tensor)] = entry
            self.alive.append(tensor)
        if entry[1] < len(self.writes.get(key[0], ())):
            return self._refresh(tensor, key, entry)
        return entry[0]

    def wrote(self, tensor: torch.Tensor, name: str) -> None:
        """An operator wrote `tensor` in place; the new value is `name`."""
        storage = piece(tensor)[0]
        self.writes.setdefault(storage, []).append(_Write(name, tensor))
        self.owner[storage] = name
        self.bind(tensor, name)

    def _refresh(self, tensor: torch.Tensor, key: Piece, entry: tuple[str, int]) -> str:
        name = entry[0]
        for write in self.writes[key[0]][entry[1] :]:
            if piece(write.tensor) == key:
                name = write.name
            elif write.tensor.numel() == tensor.numel():
                name = self.emit("aten.view.default", (write.name,), (tuple(tensor.shape),), tensor)
            else:
                place = (tuple(write.tensor.shape), write.tensor.stride(), write.tensor.storage_offset())
                name = self.emit("aten.as_strided_scatter.default", (name, write.name), place, tensor)
        self.bind(tensor, name)
        return name
