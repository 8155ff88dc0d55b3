"""Placements print and parse; layouts come in four kinds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from planner.errors import PlanError
from planner.ir.placement import RP, Layout, P, Partial, Placement, R, Replicate, S, Shard, parse_placement, without_grad
from tests.strategies import placements


@given(placements)
def test_parsing_inverts_printing(placement: Placement) -> None:
    """parse(str(p)) == p."""
    assert placement == parse_placement(str(placement))


@pytest.mark.parametrize("text", ["", "S", "S()", "S(-1)", "S(0) ", "s(0)", "P", "P()", "P(sum", "Replicate"])
def test_other_text_is_refused(text: str) -> None:
    """Only S(dim), R and P(reduction) are placements; the error quotes what was found."""
    with pytest.raises(PlanError, match=re.escape(f"placement {text!r} is not one of S(dim), R, P(reduction)")):
        parse_placement(text)


@given(placements)
def test_a_placement_is_of_one_kind(placement: Placement) -> None:
    """Exactly one of shard, partial, replicate."""
    assert 1 == sum((placement.is_shard, placement.is_partial, placement.is_replicate))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(R, R), (RP, R), (P, P), (S(1), S(1))],
    ids=str,
)
def test_layout_without_gradient(layout: Layout, expected: Layout) -> None:
    """Without a gradient R/P and R/R are one; a slice and a sum stay what they are."""
    assert expected == without_grad(layout)


def test_layouts_name_value_and_gradient() -> None:
    """The four kinds, as the field writes them."""
    assert ["R/R", "R/P(sum)", "S(2)/S(2)", "P(sum)/R"] == [str(layout) for layout in (R, RP, S(2), P)]
    assert (Replicate(), Partial(), Shard(2)) == (RP.value, RP.grad, S(2).grad)
