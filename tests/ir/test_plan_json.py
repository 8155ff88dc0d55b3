"""The plan file: a bijection between plans and canonical texts, and nothing else is accepted."""

from __future__ import annotations

from hypothesis import given, settings

from planner.ir import plan_json
from planner.ir.plan import Plan
from tests.strategies import plans


@given(plans())
@settings(max_examples=60, deadline=None)
def test_reading_inverts_writing(plan: Plan) -> None:
    """read(write(p)) == p, and writing again gives the same bytes."""
    text = plan_json.write(plan)
    assert plan == plan_json.read(text)
    assert text == plan_json.write(plan_json.read(text))
