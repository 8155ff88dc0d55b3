"""Joining determined nodes against the problem it came from."""

from hypothesis import given

from planner.ir.problem import Problem, cost_s, is_consistent, memory_bytes
from planner.prune.consistency import consistent
from planner.prune.determined import join
from planner.search.enumerate import selections
from tests.search.problems import problems


@given(problems())
def test_selections_correspond_one_to_one(problem: Problem) -> None:
    """Every selection of the smaller problem expands to one of the larger with its cost and memory, and none is lost."""
    if any(not node.choices for node in consistent(problem)[0].nodes):
        return
    joined = join(problem)
    small = list(selections(joined.problem))
    expanded = [joined.expand(picks) for picks in small]
    assert set(selections(problem)) == set(expanded)
    for picks, whole in zip(small, expanded, strict=True):
        assert is_consistent(problem, whole)
        assert abs(cost_s(problem, whole) - cost_s(joined.problem, picks)) < 1e-12
        assert abs(memory_bytes(problem, whole) - memory_bytes(joined.problem, picks)) < 1e-3


@given(problems())
def test_joining_never_adds_choices(problem: Problem) -> None:
    joined = join(problem)
    assert joined.problem.variables <= problem.variables
    assert len(joined.problem.nodes) <= len(problem.nodes)
