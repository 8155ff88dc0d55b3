"""Which numbered siblings of a module tree are copies of each other, judged before anything runs.

Two modules are equal if they have the same class, training flag and hooks (none), parameters and buffers of equal names, shapes, dtypes
and requires_grad, equal plain attributes, and equal children, and if ties run alike inside both. A plain attribute that holds the module's
own number (`layer_idx`) does not count as a difference here; the tracer watches that the code never reads it (planner.trace.fold).
Parameters shared with another copy, or with anything outside, make a block unlike all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

_NUMBERED = re.compile(r"(.*?)(\d+)")
_INTERNAL = frozenset(vars(nn.Module()))


@dataclass(frozen=True, slots=True)
class Run:
    """Equal siblings: `prefix` + number + nothing, for each of `numbers`; `alone` if no other run shares the prefix."""

    prefix: str
    numbers: tuple[int, ...]
    indices: frozenset[str]
    """Names of plain attributes, anywhere in the blocks, that hold the block's own number."""

    @property
    def fqns(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{number}" for number in self.numbers)


def runs(model: nn.Module) -> tuple[Run, ...]:
    """All runs of at least two equal consecutive siblings, outer ones before those nested in them."""
    owners = _owners(model)
    return tuple(run for fqn, module in model.named_modules() for run in _runs_below(module, fqn=fqn, owners=owners))


def _runs_below(parent: nn.Module, *, fqn: str, owners: Mapping[int, tuple[str, ...]]) -> Iterator[Run]:
    prefix, members, indices = "", list[tuple[int, nn.Module]](), set[str]()
    for name, child in [*parent.named_children(), ("", None)]:
        match = _NUMBERED.fullmatch(name)
        path = f"{fqn}.{match[1]}" if match and fqn else match[1] if match else ""
        if members and match and child is not None and path == prefix and int(match[2]) == members[-1][0] + 1:
            found = _equal(members[0], (int(match[2]), child))
            if found is not None:
                members.append((int(match[2]), child))
                indices |= found
                continue
        if len(members) > 1:
            yield Run(prefix, tuple(number for number, _ in members), frozenset(indices))
        eligible = match is not None and child is not None and _self_contained(child, f"{path}{match[2]}", owners)
        prefix, members, indices = path, [(int(match[2]), child)] if eligible and match and child is not None else [], set()


def _owners(model: nn.Module) -> dict[int, tuple[str, ...]]:
    owners: dict[int, tuple[str, ...]] = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = (*owners.get(id(parameter), ()), fqn)
    return owners


def _self_contained(block: nn.Module, fqn: str, owners: Mapping[int, tuple[str, ...]]) -> bool:
    """Whether no parameter of the block has a name outside it, and the block can be replaced for the time of a recording."""
    inside = all(name.startswith(f"{fqn}.") for parameter in block.parameters() for name in owners[id(parameter)])
    return inside and "forward" not in vars(block)


def _equal(left: tuple[int, nn.Module], right: tuple[int, nn.Module]) -> set[str] | None:
    """Names of attributes that hold the own number in both; None if the modules differ."""
    indices: set[str] = set()
    ties: dict[int, int] = {}
    numbers = (left[0], right[0])
    pairs = zip(left[1].named_modules(remove_duplicate=False), right[1].named_modules(remove_duplicate=False), strict=False)
    for (left_name, a), (right_name, b) in pairs:
        if left_name != right_name or not _equal_modules(a, b, numbers=numbers, ties=ties, indices=indices):
            return None
    same_size = sum(1 for _ in left[1].modules()) == sum(1 for _ in right[1].modules())
    return indices if same_size else None


def _equal_modules(a: nn.Module, b: nn.Module, *, numbers: tuple[int, int], ties: dict[int, int], indices: set[str]) -> bool:
    if a is b:
        return not any(True for _ in a.parameters())  # a shared stateless module is alike; shared parameters are not copies
    if type(a) is not type(b) or a.training != b.training or _hooked(a) or _hooked(b):
        return False
    if not _equal_tensors(a._parameters, b._parameters, ties) or not _equal_tensors(a._buffers, b._buffers, ties):
        return False
    left, right = _attributes(a), _attributes(b)
    if left.keys() != right.keys() or a._non_persistent_buffers_set != b._non_persistent_buffers_set:
        return False
    for name, value in left.items():
        if _same(value, right[name]):
            continue
        if type(value) is not int or (value, right[name]) != numbers:
            return False
        indices.add(name)
    return True


def _equal_tensors(left: Mapping[str, torch.Tensor | None], right: Mapping[str, torch.Tensor | None], ties: dict[int, int]) -> bool:
    if left.keys() != right.keys():
        return False
    for name, a in left.items():
        b = right[name]
        if a is None or b is None:
            if a is not b:
                return False
            continue
        if (a.shape, a.dtype, a.requires_grad, type(a)) != (b.shape, b.dtype, b.requires_grad, type(b)):
            return False
        if ties.setdefault(id(a), id(b)) != id(b):
            return False
    return True


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _INTERNAL and name != "training"}


def _hooked(module: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(vars(module).get(kind) for kind in kinds)


def _same(a: Any, b: Any) -> bool:
    """Equality of plain attributes; objects that cannot be compared are equal only to themselves."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, torch.Tensor | nn.Module):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, partial):
        return _same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False
