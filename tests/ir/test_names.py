"""Names of repeated blocks in a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.names import block_glob, lookup, matches


@pytest.mark.parametrize(
    ("glob", "fqn", "expected"),
    [
        ("layers.*", "layers.3", True),
        ("layers.*", "layers.3.mlp", False),
        ("layers.*.mlp", "layers.3.mlp", True),
        ("layers.*", "layers.norm", False),
        ("layers.*", "xlayers.3", False),
        ("layers.*[1-3]", "layers.3", True),
        ("layers.*[1-3]", "layers.4", False),
        ("norm", "norm", True),
        ("layers.1", "layersx1", False),
    ],
)
def test_a_star_stands_for_a_number(glob: str, fqn: str, expected: bool) -> None:
    assert expected == matches(glob, fqn)


def test_an_exact_name_goes_before_a_glob() -> None:
    table = (("layers.*", "any"), ("layers.1", "this"))
    assert ("this", "any", None) == tuple(lookup(table, fqn) for fqn in ("layers.1", "layers.2", "norm"))


@given(first=st.integers(0, 12), count=st.integers(1, 5), number=st.integers(0, 20), alone=st.booleans())
def test_a_glob_stands_for_the_numbers_it_was_made_of(first: int, count: int, number: int, alone: bool) -> None:
    """Those and, unless there are no others, no more."""
    numbers = tuple(range(first, first + count))
    assert (alone or number in numbers) == matches(block_glob("layers.", numbers, alone=alone), f"layers.{number}")
