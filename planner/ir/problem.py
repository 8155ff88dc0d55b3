"""The placement problem: pick one choice per node so that linked ports agree, at least cost, within a memory limit.

    minimise    sum_n cost_s(n, x_n)
    subject to  layout(a, i, x_a) = layout(b, j, x_b)      for every link (a, i) - (b, j)
                sum_n memory_bytes(n, x_n) <= memory_limit

A node is an op or a leaf (parameter, buffer, input) of the folded graph; costs and memory already carry the node's multiplicity. A port is
an input or output of the node, numbered inputs first. Choices that cannot be part of any solution are never created, and nothing has
infinite cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.ir.placement import Layout


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a node: its layout at each port, and what that costs."""

    ports: tuple[Layout, ...]
    cost_s: float
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """A decision with at least one choice."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """Port `port` of node `node` carries the same tensor as port `other_port` of node `other` (node numbers)."""

    node: int
    port: int
    other: int
    other_port: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Nodes, links and an optional memory limit in bytes."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    memory_limit: float | None = None

    @property
    def variables(self) -> int:
        """Binary decision variables."""
        return sum(len(node.choices) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Solution:
    """`picks[n]` is the index of node n's choice; `bound_s` is proven: no solution costs less."""

    picks: tuple[int, ...]
    cost_s: float
    bound_s: float
    memory_bytes: float


def cost_s(problem: Problem, picks: Sequence[int]) -> float:
    """Cost of a selection."""
    return sum(node.choices[pick].cost_s for node, pick in zip(problem.nodes, picks, strict=True))


def memory_bytes(problem: Problem, picks: Sequence[int]) -> float:
    """Memory of a selection."""
    return sum(node.choices[pick].memory_bytes for node, pick in zip(problem.nodes, picks, strict=True))


def is_consistent(problem: Problem, picks: Sequence[int]) -> bool:
    """Whether every link's ports agree."""
    chosen = [node.choices[pick].ports for node, pick in zip(problem.nodes, picks, strict=True)]
    return all(chosen[link.node][link.port] == chosen[link.other][link.other_port] for link in problem.links)
