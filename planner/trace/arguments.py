"""An operator call as plain data: its functional name and its arguments with tensors replaced by positions.

Arguments come in schema order with defaults filled in, keyword-only ones at the end, so that a rule finds `dim` in one place whichever way
the model spelled the call. In-place operators are written under their functional name (trap: `relu_` on a shared tensor); random ones
keep theirs, because `bernoulli_` has no functional twin with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from planner.ir.graph import TensorArg


def target_name(func: OpOverload) -> str:
    """`aten.add_.Tensor` becomes `aten.add.Tensor` where torch has that operator."""
    name, overload = func._opname, func._overloadname
    if name.endswith("_") and not name.endswith("__"):
        packet = getattr(getattr(torch.ops, func.namespace), name[:-1], None)
        if packet is not None and overload in packet.overloads():
            name = name[:-1]
    return f"{func.namespace}.{name}.{overload}"


def positional(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """All arguments in schema order, defaults filled in."""
    values = []
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args):
            values.append(args[index])
        else:
            values.append(kwargs.get(argument.name, argument.default_value))
    return tuple(values)


def written(func: OpOverload, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """The tensors among `values` (in schema order) that the operator mutates."""
    found: list[torch.Tensor] = []
    for argument, value in zip(func._schema.arguments, values, strict=True):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        found.extend([value] if isinstance(value, torch.Tensor) else [item for item in value or () if isinstance(item, torch.Tensor)])
    return tuple(found)


def plain(values: Sequence[Any], name_of: Callable[[torch.Tensor], str]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """`values` as hashable data and the names of the tensors that `TensorArg` numbers refer to."""
    names: list[str] = []

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            names.append(name_of(value))
            return TensorArg(len(names) - 1)
        if isinstance(value, list | tuple):
            return tuple(convert(item) for item in value)
        if isinstance(value, bool | int | float | str | None):
            return value
        if isinstance(value, torch.SymInt):
            return int(value)
        return str(value).removeprefix("torch.")

    return tuple(convert(value) for value in values), tuple(names)
