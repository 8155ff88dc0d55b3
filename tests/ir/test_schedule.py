"""Actions print and parse."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.ir.schedule import KINDS, Action, parse_action

actions = st.builds(Action, st.integers(0, 999), st.sampled_from(KINDS), st.integers(0, 999))


@given(actions)
def test_parsing_inverts_printing(action: Action) -> None:
    """parse(str(a)) == a."""
    assert action == parse_action(str(action))


@pytest.mark.parametrize("text", ["", "F0", "2F", "2X0", "2F0 ", "-1F0", "2f0"])
def test_other_text_is_refused(text: str) -> None:
    """The error quotes the text and shows the form."""
    with pytest.raises(PlanError, match=re.escape(f"action {text!r} is not of the form 2F0")):
        parse_action(text)
