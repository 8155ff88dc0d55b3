"""What a model allows, before any candidate is priced: tensor-parallel degrees, places to cut, microbatch sizes."""

from __future__ import annotations

from planner.errors import RuleError
from planner.ir.family import GraphFamily
from planner.ir.plan import Illegal
from planner.rules.legality import reasons
from planner.search.candidates import Legality, divisors
from planner.search.pool import Pool
from planner.search.units import unit_names


def legality(family: GraphFamily, pool: Pool, *, devices: int) -> Legality:
    """The legality table. A tensor-parallel degree is legal if every op has a rule and some op can be divided at that degree."""
    graph = pool.graph(family.low.batch)
    degrees, refused = [1], []
    for degree in divisors(devices)[1:]:
        try:
            divided = any(way.strategy.divided for decision in pool.space(family.low.batch, degree).decisions for way in decision.ways)
        except RuleError as error:
            refused.append(Illegal("tp > 1", str(error)))
            break
        refused.extend(reasons(graph, degree))
        if divided:
            degrees.append(degree)
        elif not any(illegal.what == f"tp={degree}" for illegal in refused):
            refused.append(Illegal(f"tp={degree}", f"no operator can be divided {degree} ways"))
    names = dict.fromkeys(unit_names(graph))
    cuts = len([name for name in names if name]) + sum(region.count - 1 for region in graph.regions)
    fixed = family.low.batch if family.high is None else 0
    return Legality(tuple(degrees), max(cuts, 1), fixed, bool(graph.regions), tuple(dict.fromkeys(refused)))
