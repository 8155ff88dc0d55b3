"""How a batch reaches `forward`, and how its shape is written in a plan.

`inputs(batch_size)` returns a tuple of positional or a dict of keyword arguments. What `forward` does not take (labels, weights) travels in
the batch for `loss` and is left out of the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = str | int


@dataclass(frozen=True, slots=True)
class InputInfo:
    """One tensor of a batch: `path` leads to it through dicts (names) and sequences (numbers); `shape` is for one microbatch."""

    path: tuple[Key, ...]
    shape: tuple[int, ...]
    dtype: str


def forward_arguments(forward: Callable[..., Any], batch: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of `forward` out of `batch`; extras are dropped.

    Raises TypeError if the batch is neither a tuple, a list nor a dict.
    """
    parameters = inspect.signature(forward).parameters.values()
    if isinstance(batch, Mapping):
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return (), dict(batch)
        names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        return (), {name: value for name, value in batch.items() if name in names}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return tuple(batch), {}
        arity = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        return tuple(batch[:arity]), {}
    raise TypeError(f"inputs(batch_size) returned {type(batch).__name__}; return a tuple of positional or a dict of keyword arguments")
