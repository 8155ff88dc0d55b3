"""Arc consistency against enumeration."""

from hypothesis import given

from planner.ir.problem import Problem
from planner.prune.consistency import consistent
from planner.search.enumerate import selections
from tests.search.problems import problems


@given(problems())
def test_every_selection_survives(problem: Problem) -> None:
    """The smaller problem has exactly the selections of the larger one."""
    small, original = consistent(problem)
    if any(not node.choices for node in small.nodes):
        assert list(selections(problem)) == []
        return
    back = {tuple(kept[pick] for kept, pick in zip(original, picks, strict=True)) for picks in selections(small)}
    assert back == set(selections(problem))
