"""A node that one link determines joins its neighbour. Exact: selections of the smaller problem and of the larger one correspond one to one.

Where every choice of node b has another layout at one of its ports, the choice of the neighbour a at the other end of that link leaves b no
freedom. The two become one node with a's choices:

    choices(a + b) = { (x, y) : x in choices(a), y the choice of b with layout(b, j, y) = layout(a, i, x) }

Parameters, views and most pointwise ops disappear into the matrix products and borders beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.ir.placement import Layout
from planner.ir.problem import Choice, Link, Node, Problem

Members = tuple[tuple[int, int], ...]
"""The original (node, choice) pairs that one choice of a joined node stands for."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The smaller problem, and what each of its choices stands for."""

    problem: Problem
    members: tuple[tuple[Members, ...], ...]

    def expand(self, picks: Sequence[int]) -> tuple[int, ...]:
        """The selection of the original problem that `picks` stands for."""
        chosen = dict(pair for members, pick in zip(self.members, picks, strict=True) for pair in members[pick])
        return tuple(chosen[node] for node in range(len(chosen)))


@dataclass(slots=True)
class _Group:
    """A joined node while it grows: a port is named by its original (node, port)."""

    ports: list[tuple[int, int]]
    choices: list[tuple[tuple[Layout, ...], Members]]

    def layouts(self, port: tuple[int, int]) -> list[Layout]:
        at = self.ports.index(port)
        return [layouts[at] for layouts, _ in self.choices]


def join(problem: Problem) -> Joined:
    """`problem` with every determined node joined to a neighbour, costs and memory added up."""
    groups = {
        index: _Group(
            [(index, port) for port in range(len(node.choices[0].ports))] if node.choices else [],
            [(choice.ports, ((index, number),)) for number, choice in enumerate(node.choices)],
        )
        for index, node in enumerate(problem.nodes)
    }
    home = {index: index for index in groups}
    links = [((link.node, link.port), (link.other, link.other_port)) for link in problem.links]
    before = -1
    while before != len(groups):
        before = len(groups)
        for link in links:
            pair = _determined(groups, home, link)
            if pair is not None:
                (a, b), (near, far) = pair
                groups[a] = _together(groups[a], groups.pop(b), near, far)
                home = {index: a if owner == b else owner for index, owner in home.items()}
                links = _outer(groups[a], a, home, links)
    return _joined(problem, groups, home, links)


End = tuple[int, int]


def _determined(groups: dict[int, _Group], home: dict[int, int], link: tuple[End, End]) -> tuple[tuple[int, int], tuple[End, End]] | None:
    """If one end of a link leaves its group no choice: (kept group, joined group), (its end, the other's end)."""
    for near, far in (link, link[::-1]):
        a, b = home[near[0]], home[far[0]]
        if a == b:
            return None
        found = groups[b].layouts(far)
        if len(set(found)) == len(found):
            return (a, b), (near, far)
    return None


def _together(a: _Group, b: _Group, near: End, far: End) -> _Group:
    match = dict(zip(b.layouts(far), b.choices, strict=True))
    pairs = [(mine, match[layout]) for mine, layout in zip(a.choices, a.layouts(near), strict=True) if layout in match]
    return _Group(a.ports + b.ports, [(one[0] + other[0], one[1] + other[1]) for one, other in pairs])


def _outer(group: _Group, number: int, home: dict[int, int], links: list[tuple[End, End]]) -> list[tuple[End, End]]:
    """The links that still join two groups; those inside `group` filter its choices and are gone, and so are ports without a link."""
    inside = [link for link in links if home[link[0][0]] == home[link[1][0]] == number]
    for one, other in inside:
        agree = [x == y for x, y in zip(group.layouts(one), group.layouts(other), strict=True)]
        group.choices = [choice for choice, kept in zip(group.choices, agree, strict=True) if kept]
    outer = [link for link in links if link not in inside]
    used = {end for link in outer for end in link}
    kept = [index for index, port in enumerate(group.ports) if port in used]
    group.ports = [group.ports[index] for index in kept]
    group.choices = [(tuple(layouts[index] for index in kept), members) for layouts, members in group.choices]
    return outer


def _joined(problem: Problem, groups: dict[int, _Group], home: dict[int, int], links: list[tuple[End, End]]) -> Joined:
    number = {index: place for place, index in enumerate(groups)}

    def choice(layouts: tuple[Layout, ...], members: Members) -> Choice:
        originals = [problem.nodes[node].choices[pick] for node, pick in members]
        return Choice(layouts, sum(c.cost_s for c in originals), sum(c.memory_bytes for c in originals))

    nodes = tuple(Node(problem.nodes[index].name, tuple(choice(*found) for found in group.choices)) for index, group in groups.items())

    def end(port: End) -> tuple[int, int]:
        owner = home[port[0]]
        return number[owner], groups[owner].ports.index(port)

    joined = tuple(Link(*end(one), *end(other)) for one, other in links)
    members = tuple(tuple(found for _, found in group.choices) for group in groups.values())
    return Joined(Problem(nodes, joined, problem.memory_limit), members)
