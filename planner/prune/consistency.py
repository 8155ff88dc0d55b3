"""Arc consistency: drop choices that no neighbour can agree with. Exact: every consistent selection survives.

while some link (a, i) - (b, j) and some choice x of a has a layout at port i that no choice of b has at port j: drop x
"""

from __future__ import annotations

from collections import deque

from planner.ir.problem import Node, Problem


def consistent(problem: Problem) -> tuple[Problem, tuple[tuple[int, ...], ...]]:
    """The smaller problem and, per node, the original index of each remaining choice.

    A node left without choices has none in the result: the problem then has no solution.
    """
    alive = [list(range(len(node.choices))) for node in problem.nodes]
    arcs: list[list[tuple[int, int, int]]] = [[] for _ in problem.nodes]
    for link in problem.links:
        arcs[link.node].append((link.port, link.other, link.other_port))
        arcs[link.other].append((link.other_port, link.node, link.port))
    queue = deque(range(len(problem.nodes)))
    waiting = set(queue)
    while queue:
        index = queue.popleft()
        waiting.discard(index)
        for port, other, other_port in arcs[index]:
            offered = {problem.nodes[index].choices[pick].ports[port] for pick in alive[index]}
            kept = [pick for pick in alive[other] if problem.nodes[other].choices[pick].ports[other_port] in offered]
            if len(kept) < len(alive[other]):
                alive[other] = kept
                if other not in waiting:
                    waiting.add(other)
                    queue.append(other)
    nodes = tuple(Node(node.name, tuple(node.choices[pick] for pick in picks)) for node, picks in zip(problem.nodes, alive, strict=True))
    return Problem(nodes, problem.links, problem.memory_limit), tuple(map(tuple, alive))
