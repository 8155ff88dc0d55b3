"""Random operators follow their input's placement: every rank draws for its own slice.

Which numbers it draws is the runtime's business: replicas must draw the same, slices different ones (the plan's RNG policy). Sums are left
out, since a draw for a summand means nothing.
"""

from __future__ import annotations

from planner.rules.call import Rules
from planner.rules.pointwise import pointwise

RULES: Rules = dict.fromkeys(
    ("aten.native_dropout.default", "aten.bernoulli_.float", "aten.rand_like.default", "aten.randn_like.default"), pointwise
)
