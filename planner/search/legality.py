"""What a model allows, before any candidate is priced: tensor-parallel degrees, places to cut, microbatch sizes."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import RuleError, TraceError
from planner.ir.family import GraphFamily
from planner.ir.plan import Illegal
from planner.rules.legality import reasons
from planner.search.candidates import Candidate, Legality, divisors
from planner.search.pool import Pool
from planner.search.units import unit_names

_WIDEST = 64
"""Ranks of one tensor-parallel group; wider ones cross so many nodes that no system uses them."""


def legality(family: GraphFamily, pool: Pool, *, devices: int, pinned: int) -> Legality:
    """The legality table. A tensor-parallel degree is legal if every op has a rule and some op can be divided at that degree. `pinned`
    is the degree asked for, 1 if none."""
    graph = pool.graph(family.low.batch)
    degrees, refused = [1], []
    for degree in divisors(devices)[1:]:
        if degree > max(_WIDEST, pinned):
            refused.append(Illegal(f"tp >= {degree}", f"more than {_WIDEST} ranks are searched only with --mesh tp={degree}"))
            break
        try:
            divided = any(way.strategy.divided for decision in pool.space(family.low.batch, degree).decisions for way in decision.ways)
        except RuleError as error:
            refused.append(Illegal("tp > 1", str(error)))
            break
        uneven = reasons(graph, degree)
        if divided:
            degrees.append(degree)
            refused.extend(Illegal(f"tp={degree} in part", f"{reason.why}, so it stays whole or is cut elsewhere") for reason in uneven)
        else:
            refused.extend(uneven or (Illegal(f"tp={degree}", f"no operator can be divided {degree} ways"),))
    names = dict.fromkeys(unit_names(graph))
    cuts = len([name for name in names if name]) + sum(region.count - 1 for region in graph.regions)
    fixed = family.low.batch if family.high is None else 0
    return Legality(tuple(degrees), max(cuts, 1), fixed, bool(graph.regions), tuple(dict.fromkeys(refused)))


def usable(pool: Pool, found: Sequence[Candidate], refused: Sequence[Illegal]) -> tuple[tuple[Candidate, ...], tuple[Illegal, ...]]:
    """The candidates whose microbatch the model can be given, and the reasons with those of the others: a dim that would not be whole."""
    reasons = {}
    for size in sorted({candidate.microbatch_size for candidate in found}):
        try:
            pool.graph(size)
        except TraceError as error:
            reasons[size] = Illegal(f"microbatch size {size}", str(error))
    kept = tuple(candidate for candidate in found if candidate.microbatch_size not in reasons)
    return kept, (*refused, *reasons.values())
