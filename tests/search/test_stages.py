"""Stage cuts against every way to cut."""

from collections.abc import Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from planner.search.stages import Unit, cut

UNITS = st.lists(
    st.builds(
        Unit,
        begin=st.sampled_from(["m", "m", "m", ""]),
        seconds=st.integers(0, 9).map(float),
        resident_bytes=st.integers(0, 9).map(float),
        in_flight_bytes=st.integers(0, 3).map(float),
        sent_s=st.integers(0, 2).map(float),
    ),
    min_size=1,
    max_size=8,
)


def _pace(units: Sequence[Unit], begins: Sequence[int], in_flight: Sequence[int], limit: float) -> float | None:
    ends = [*begins[1:], len(units)]
    worst = 0.0
    for stage, (start, end) in enumerate(zip(begins, ends, strict=True)):
        part = units[start:end]
        held = sum(u.resident_bytes + in_flight[stage] * u.in_flight_bytes for u in part)
        if held > limit or (stage and not part[0].begin) or not sum(u.resident_bytes for u in part):
            return None
        worst = max(worst, sum(u.seconds for u in part) + (part[0].sent_s if stage else 0.0))
    return worst


@given(UNITS, st.integers(1, 4), st.integers(5, 80))
def test_the_slowest_stage_is_as_fast_as_any_cut_allows(units: list[Unit], stages: int, limit: int) -> None:
    """The dynamic program finds the least pace among all cuts that fit, or none when there is none."""
    in_flight = [stages - s for s in range(stages)]
    every = [_pace(units, (0, *middle), in_flight, limit) for middle in combinations(range(1, len(units)), stages - 1)]
    best = min((pace for pace in every if pace is not None), default=None)
    found = cut(units, in_flight=in_flight, fixed_bytes=0.0, limit_bytes=limit)
    assert best == (None if found is None else _pace(units, found, in_flight, limit))
