"""How a batch reaches forward: extras are dropped, the rest arrives under its name or in its place."""

from __future__ import annotations

from typing import Any

import pytest

from planner.ir.batch import forward_arguments


def positional(x: int, y: int = 0) -> None: ...
def keyword(*, x: int, scale: int = 1) -> None: ...
def variadic(*xs: int) -> None: ...
def open_ended(x: int, **others: int) -> None: ...


@pytest.mark.parametrize(
    ("forward", "batch", "expected"),
    [
        (positional, (1,), ((1,), {})),
        (positional, (1, 2, 3), ((1, 2), {})),
        (positional, [1, 2], ((1, 2), {})),
        (positional, {"x": 1, "labels": 2}, ((), {"x": 1})),
        (keyword, {"x": 1, "scale": 3, "labels": 2}, ((), {"x": 1, "scale": 3})),
        (variadic, (1, 2, 3), ((1, 2, 3), {})),
        (open_ended, {"x": 1, "labels": 2}, ((), {"x": 1, "labels": 2})),
    ],
    ids=str,
)
def test_arguments(forward: Any, batch: Any, expected: tuple[tuple[int, ...], dict[str, int]]) -> None:
    """Positional batches fill what forward has places for, dicts what it has names for."""
    assert expected == forward_arguments(forward, batch)


def test_other_batches_are_refused() -> None:
    """A batch that is neither a tuple, a list nor a dict is named."""
    with pytest.raises(TypeError, match=r"inputs\(batch_size\) returned int"):
        forward_arguments(positional, 7)
