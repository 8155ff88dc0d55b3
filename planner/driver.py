"""The whole compiler on one screen: a recorded model and a cluster in, a Plan out.

GraphFamily --fold--> Graph --price--> Space --ILP--> units --cut, simulate--> Evaluation --assemble--> Plan
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from costmodels.hardware import Cluster
from planner.ir.family import GraphFamily
from planner.ir.options import Options
from planner.ir.plan import Plan
from planner.search.assemble import assemble
from planner.search.best_first import search
from planner.search.candidates import candidates
from planner.search.infeasible import explain
from planner.search.legality import legality, usable
from planner.search.pool import Pool
from planner.search.setting import setting_of
from planner.simulate.makespan import makespan_s

Progress = Callable[[str, int, int], None]
"""Called with the phase and how much of it is done, out of how much."""


def make_plan(family: GraphFamily, cluster: Cluster, options: Options, *, progress: Progress = lambda phase, done, total: None) -> Plan:
    """The fastest plan of `family` on `cluster` that fits in memory and keeps to `options`.

    Raises InfeasibleError when no plan exists, with the smallest memory that one would need.
    """
    started = perf_counter()
    progress("legality", 0, 1)
    pool = Pool(family, setting_of(family, cluster, options, makespan_s))
    legal = legality(family, pool, devices=cluster.devices, pinned=dict(options.mesh).get("tp", 1))
    found, illegal = usable(pool, *candidates(cluster.devices, legal, options))
    ready = perf_counter()
    outcome = search(found, pool, max_seconds=options.max_seconds, progress=progress)
    if not outcome.solved:
        raise explain(found, illegal, pool, options, counts=outcome.counts)
    solved = perf_counter()
    seconds = (("legality_s", ready - started), ("search_s", solved - ready))
    return assemble(outcome, pool, illegal, options, seconds=seconds)
