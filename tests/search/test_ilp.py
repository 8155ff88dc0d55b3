"""The integer program against enumeration."""

import pytest
from hypothesis import given

from planner.ir.placement import P, R, S
from planner.ir.problem import Choice, Link, Node, Problem, is_consistent
from planner.search import enumerate as oracle
from planner.search import ilp
from tests.search.problems import problems


@given(problems())
def test_optimum_equals_enumeration(problem: Problem) -> None:
    """Without a memory limit the program finds the cheapest consistent selection, and its bound is that cost."""
    expected, actual = oracle.solve(problem), ilp.solve(problem)
    if expected is None:
        assert actual is None
    else:
        assert actual is not None
        assert is_consistent(problem, actual.picks)
        assert actual.cost_s == pytest.approx(expected.cost_s, abs=1e-9)
        assert actual.bound_s == pytest.approx(expected.cost_s, abs=1e-9)


@given(problems(limited=True))
def test_memory_limit_is_hard(problem: Problem) -> None:
    """With a limit the optimum still equals enumeration, and never exceeds the limit."""
    expected, actual = oracle.solve(problem), ilp.solve(problem, gap=0.0)
    if expected is None:
        assert actual is None
    else:
        assert actual is not None
        assert actual.memory_bytes <= problem.memory_limit + 1e-3
        assert actual.cost_s == pytest.approx(expected.cost_s, rel=1e-6, abs=1e-9)


def test_a_node_that_reads_one_tensor_twice_agrees_with_itself() -> None:
    """Two ports of one node may be linked: x * x."""
    square = Node("square", (Choice((S(0), R), 1.0), Choice((R, R), 2.0), Choice((P, P), 3.0)))
    solution = ilp.solve(Problem((square,), (Link(0, 0, 0, 1),)))
    assert solution is not None
    assert solution.picks == (1,)
