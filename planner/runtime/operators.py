"""What an exported operator does and where it stands: inside which call of which block, with which effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

OUT_OF_PLACE: Mapping[Any, Any] = {torch.ops.aten.detach_.default: torch.ops.aten.detach.default}
"""Operators in place that export itself writes, on a fresh copy of a constant, and what is the same out of place."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator stands: `call` is the block's call it is inside of (empty if none), `around` the modules that are cut."""

    call: str
    around: tuple[str, ...]


def places_of(nodes: Mapping[str, fx.Node], model: nn.Module, cut: Set[str], hooked: Callable[[str], bool]) -> dict[str, Place]:
    """Where each operator stands, once pure modules without parameters count as cut."""
    impure: set[str] = set()
    blocks: set[str] = set()
    for node in nodes.values():
        block = place_of(node, cut.__contains__).call.partition("@")[0]
        blocks.add(block)
        if not is_pure(node):
            impure.add(block)
    opened = {block for block in blocks - impure - {""} if not hooked(block) and not any(True for _ in model.get_submodule(block).parameters())}
    inside = tuple(f"{block}." for block in opened)
    return {name: place_of(node, lambda fqn: fqn in cut or fqn in opened or fqn.startswith(inside)) for name, node in nodes.items()}


def place_of(node: fx.Node, is_cut: Callable[[str], bool]) -> Place:
    """Where an operator stands, from the module stack that export recorded; the key of a second call ends in `@1`."""
    stack = [(key, fqn) for key, (fqn, _) in (node.meta.get("nn_module_stack") or {}).items()]
    around = tuple(fqn for _, fqn in stack if fqn and is_cut(fqn))
    for key, fqn in stack:
        if not is_cut(fqn):
            _, at, count = key.rpartition("@")
            return Place(f"{fqn}@{count}" if at else fqn, around)
    return Place("", around)


def is_pure(node: fx.Node) -> bool:
    """Whether an operator has no effect and no randomness."""
    target = node.target
    if target in OUT_OF_PLACE or target is torch.ops.aten._assert_tensor_metadata.default:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def writes(node: fx.Node) -> Iterator[str]:
    """The names of the nodes that an operator writes into."""
    schema = getattr(node.target, "_schema", None)
    if node.op == "call_function" and schema is not None and schema.is_mutable and node.target not in OUT_OF_PLACE:
        for index, argument in enumerate(schema.arguments):
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
                yield value.name


def with_written(attributes: Mapping[str, str], graph: fx.Graph) -> dict[str, str]:
    """`attributes` with the results of operators that write into one of them: they are that buffer."""
    found = dict(attributes)
    for node in graph.nodes:
        owners = [found[name] for name in writes(node) if name in found]
        if len(owners) == 1:
            found[node.name] = owners[0]
    return found
