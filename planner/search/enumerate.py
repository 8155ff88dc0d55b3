"""The oracle: every consistent selection of a small placement problem, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.problem import Problem, Solution, cost_s, memory_bytes


def selections(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All selections whose links agree, by depth-first search; exponential in the worst case."""
    links: list[list[tuple[int, int, int]]] = [[] for _ in problem.nodes]
    for link in problem.links:
        low, high = sorted(((link.node, link.port), (link.other, link.other_port)))
        links[high[0]].append((high[1], low[0], low[1]))

    def extend(picks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        index = len(picks)
        if index == len(problem.nodes):
            yield picks
            return
        for pick, choice in enumerate(problem.nodes[index].choices):
            extended = (*picks, pick)
            agree = (choice.ports[port] == _ports(problem, extended, other)[other_port] for port, other, other_port in links[index])
            if all(agree):
                yield from extend(extended)

    return extend(())


def _ports(problem: Problem, picks: tuple[int, ...], node: int) -> tuple[object, ...]:
    return problem.nodes[node].choices[picks[node]].ports


def solve(problem: Problem) -> Solution | None:
    """The cheapest selection within the memory limit; None if there is none."""
    best: Solution | None = None
    for picks in selections(problem):
        used, cost = memory_bytes(problem, picks), cost_s(problem, picks)
        if problem.memory_limit is not None and used > problem.memory_limit:
            continue
        if best is None or cost < best.cost_s:
            best = Solution(picks, cost, cost, used)
    return best
