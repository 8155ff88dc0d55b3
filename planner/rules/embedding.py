"""Table lookups.

Columns of the table may be split (the result is split in its last dim), rows (every rank looks up what it has: the result is a sum over the
ranks, in DTensor's own masked form, hence `P(mask)`, which only a border may consume), or the indices (the table's gradient is a sum).
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import RP, Layout, Partial, R, Replicate, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided, partial_gradient

MASKED = Layout(Partial("mask"), Replicate())
"""What a lookup in a table split by rows leaves."""


def embedding(call: Call) -> Iterator[Strategy]:
    """embedding(weight, indices)."""
    indices = len(call.shapes[1])
    yield divided((S(1), R), S(indices))
    yield divided((S(0), R), MASKED)
    for dim in range(indices):
        yield divided((RP, S(dim)), S(dim))
    yield partial_gradient(call)


RULES: Rules = {"aten.embedding.default": embedding}
