"""Random placement problems for the oracles."""

from hypothesis import strategies as st

from planner.ir.placement import RP, P, R, S
from planner.ir.problem import Choice, Link, Node, Problem

LAYOUTS = (R, RP, P, S(0), S(1))


@st.composite
def problems(draw: st.DrawFn, *, max_nodes: int = 6, limited: bool = False) -> Problem:
    """Random nodes with one input and one output port, links along random edges, integer costs."""
    count = draw(st.integers(1, max_nodes))
    nodes = []
    for index in range(count):
        ports = draw(st.lists(st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)), min_size=1, max_size=5, unique=True))
        choices = tuple(Choice(pair, draw(st.integers(0, 50)) * 1e-3, draw(st.integers(0, 50)) * 2.0**20) for pair in ports)
        nodes.append(Node(f"n{index}", choices))
    links = []
    for index in range(1, count):
        for source in draw(st.lists(st.integers(0, index - 1), max_size=2, unique=True)):
            links.append(Link(source, 1, index, 0))
    limit = draw(st.integers(0, 50 * count)) * 2.0**20 if limited else None
    return Problem(tuple(nodes), tuple(links), limit)
