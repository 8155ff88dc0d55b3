"""Operators that make a tensor out of numbers: every rank makes the whole of it.

`x.new_ones(shape)` and its like take only dtype and device from x; DTensor makes them whole, or split like x where they have its shape.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import P, R, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, repeated
from planner.rules.pointwise import nothing, pointwise


def fresh(call: Call) -> Iterator[Strategy]:
    """new_ones, new_zeros, new_full, new_empty: (x, shape, ...)."""
    if call.out == call.shapes[0]:
        yield from pointwise(call)
        return
    yield from (repeated((S(dim),), R) for dim in range(len(call.shapes[0])))
    yield repeated((P,), R)


_NEW = ("new_empty.default", "new_full.default", "new_ones.default", "new_zeros.default")
_MADE = (
    "arange.default", "arange.start", "arange.start_step", "empty.memory_format", "eye.default", "full.default", "linspace.default",
    "ones.default", "scalar_tensor.default", "zeros.default",
)  # fmt: skip

RULES: Rules = {
    **{f"aten.{name}": fresh for name in _NEW},
    **{f"aten.{name}": nothing for name in _MADE},
}
