"""The simulator against the paper's vectors, its closed forms, and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.memory import in_flight
from costmodels.step import bubble_of_ideal, bubble_of_total, pipeline_s
from planner.errors import ClusterError, PlanError
from planner.ir.schedule import Action, Schedule
from planner.schedules.build import build
from planner.simulate.engine import Event, Simulation, simulate
from tests.schedules.pipelines import schedules

times = st.integers(0, 100).map(float)


def _interleaved(ranks: int, microbatches: int, virtual: int) -> Simulation:
    """F=1 and B=2 per microbatch and rank, so a chunk takes 1/v of that."""
    schedule = build("interleaved", stages=ranks * virtual, microbatches=microbatches, virtual=virtual)
    return simulate(schedule, forward_s=1 / virtual, backward_s=2 / virtual)


@pytest.mark.parametrize(
    ("ranks", "microbatches", "virtual", "total", "peak"),
    [
        (4, 8, 1, 33.0, (4, 3, 2, 1)),
        (4, 8, 2, 28.5, (11, 9, 7, 5)),
        (4, 8, 4, 26.25, (19, 17, 15, 13)),
        (8, 32, 1, 117.0, (8, 7, 6, 5, 4, 3, 2, 1)),
        (8, 32, 2, 106.5, (23, 21, 19, 17, 15, 13, 11, 9)),
        (8, 32, 4, 101.25, (39, 37, 35, 33, 31, 29, 27, 25)),
        (2, 2, 1, 9.0, (2, 1)),
        (2, 2, 2, 7.5, (4, 3)),
        (2, 2, 4, 6.75, (8, 7)),
    ],
)
def test_golden_vectors(ranks: int, microbatches: int, virtual: int, total: float, peak: tuple[int, ...]) -> None:
    """Interleaved schedules of SC21, simulated independently."""
    simulation = _interleaved(ranks, microbatches, virtual)
    assert (total, peak) == (simulation.makespan_s, simulation.peak_in_flight)


@pytest.mark.parametrize("virtual", [1, 2, 4])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_bubble_and_peak_formulas(ranks: int, virtual: int) -> None:
    """For m = p, 2p .. 8p: bubble (p-1)/(vm) of ideal, (p-1)/(vm+p-1) of total, and the peak of every rank."""
    for microbatches in range(ranks, 8 * ranks + 1, ranks):
        simulation = _interleaved(ranks, microbatches, virtual)
        ideal = 3.0 * microbatches
        peaks = (in_flight("interleaved", rank=r, ranks=ranks, microbatches=microbatches, virtual=virtual) for r in range(ranks))
        assert bubble_of_ideal(ranks, microbatches, virtual) == pytest.approx(simulation.makespan_s / ideal - 1, abs=1e-12)
        assert bubble_of_total(ranks, microbatches, virtual) == pytest.approx(simulation.bubble_of_total, abs=1e-12)
        assert tuple(peaks) == simulation.peak_in_flight


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", range(1, 9))
def test_gpipe_and_1f1b_formulas(name: str, stages: int) -> None:
    """(m + p - 1)(f + b) and the peaks, for any m, also below p."""
    for microbatches in (1, 2, 3, 7, 8, 20):
        simulation = simulate(build(name, stages=stages, microbatches=microbatches), forward_s=1, backward_s=2)
        peaks = (in_flight(name, rank=rank, ranks=stages, microbatches=microbatches) for rank in range(stages))
        assert 3.0 * (microbatches + stages - 1) == simulation.makespan_s
        assert tuple(peaks) == simulation.peak_in_flight


@st.composite
def timed(draw: st.DrawFn) -> tuple[Schedule, list[float], list[float]]:
    schedule = draw(schedules())
    lists = [draw(st.lists(times, min_size=schedule.stages, max_size=schedule.stages)) for _ in range(2)]
    return schedule, lists[0], lists[1]


@given(timed(), times)
def test_the_closed_form_is_a_lower_bound(case: tuple[Schedule, list[float], list[float]], p2p: float) -> None:
    """With unequal stages and messages no schedule beats `pipeline_s`; whole numbers, so exactly."""
    schedule, forward, backward = case
    across = p2p if len(schedule.ranks) > 1 else 0.0
    bound = pipeline_s(forward, backward, schedule.microbatches, p2p_s=across)
    assert bound <= simulate(schedule, forward_s=forward, backward_s=backward, p2p_s=p2p).makespan_s


@given(timed(), times)
def test_events_respect_ranks_and_messages(case: tuple[Schedule, list[float], list[float]], p2p: float) -> None:
    """No overlap on a rank, every input has arrived, and no action could start earlier."""
    schedule, forward, backward = case
    simulation = simulate(schedule, forward_s=forward, backward_s=backward, p2p_s=p2p)
    ends = {event.action: event for event in simulation.events}
    free = [0.0] * len(schedule.ranks)
    for event in simulation.events:
        duration = (forward if event.action.kind == "F" else backward)[event.action.stage]
        arrivals = [e.end_s + (p2p if e.rank != event.rank else 0.0) for e in _inputs(event, ends)]
        assert max([free[event.rank], *arrivals]) == event.start_s
        assert event.start_s + duration == event.end_s
        free[event.rank] = event.end_s
    assert max(free) == simulation.makespan_s


def _inputs(event: Event, ends: dict[Action, Event]) -> list[Event]:
    action = event.action
    step = -1 if action.kind == "F" else 1
    neighbour = Action(action.stage + step, action.kind, action.microbatch)
    own = Action(action.stage, "F", action.microbatch)
    return [ends[a] for a in (neighbour, own) if a in ends and a != action]


@given(timed(), st.data())
def test_slower_stages_never_finish_earlier(case: tuple[Schedule, list[float], list[float]], data: st.DataObject) -> None:
    schedule, forward, backward = case
    stage = data.draw(st.integers(0, schedule.stages - 1))
    slower = [seconds + (10.0 if index == stage else 0.0) for index, seconds in enumerate(forward)]
    before = simulate(schedule, forward_s=forward, backward_s=backward).makespan_s
    assert before <= simulate(schedule, forward_s=slower, backward_s=backward).makespan_s


def test_two_stages_by_hand() -> None:
    """1F1B, p=2, m=2, messages of 0.5: rank 1 starts at 1.5; rank 0 gets its first gradient at 1.5 + 1 + 2 + 0.5 = 5."""
    simulation = simulate(build("1f1b", stages=2, microbatches=2), forward_s=1, backward_s=2, p2p_s=0.5)
    assert ((0.0, 1.0, 5.0, 8.0), (1.5, 2.5, 4.5, 5.5)) == simulation.starts_s
    assert 10.0 == simulation.makespan_s
    assert (6.0, 6.0) == simulation.busy_s
    assert 0.4 == pytest.approx(simulation.bubble_of_total)


def test_messages_per_boundary() -> None:
    """Only the second boundary is slow; one microbatch crosses it twice."""
    schedule = build("gpipe", stages=3, microbatches=1)
    assert 3 * 3 + 2 * 7 == simulate(schedule, forward_s=1, backward_s=2, p2p_s=[0, 7]).makespan_s


def test_stages_of_one_rank_hand_over_for_free() -> None:
    """One rank with two stages."""
    schedule = build("interleaved", stages=2, microbatches=3, virtual=2)
    assert 3 * 2 * 3 == simulate(schedule, forward_s=1, backward_s=2, p2p_s=100).makespan_s


def test_halves_of_backward() -> None:
    """I and W take half of B each; the activation is held until W ends."""
    actions = tuple(Action(0, kind, m) for kind, m in (("F", 0), ("I", 0), ("F", 1), ("W", 0), ("I", 1), ("W", 1)))
    simulation = simulate(Schedule("split", 1, 2, 1, (actions,)), forward_s=1, backward_s=2)
    assert (6.0, (2,)) == (simulation.makespan_s, simulation.peak_in_flight)


def test_an_empty_schedule_takes_no_time() -> None:
    simulation = simulate(Schedule("empty", 1, 0, 1, ((),)), forward_s=1, backward_s=1)
    assert (0.0, 0.0) == (simulation.makespan_s, simulation.bubble_of_total)


def test_wrong_number_of_durations_is_refused() -> None:
    schedule = build("gpipe", stages=3, microbatches=1)
    with pytest.raises(ClusterError, match="forward_s has 2 entries; give one number or 3"):
        simulate(schedule, forward_s=[1, 2], backward_s=1)
    with pytest.raises(ClusterError, match="p2p_s has 3 entries; give one number or 2"):
        simulate(schedule, forward_s=1, backward_s=1, p2p_s=[1, 2, 3])


def test_deadlock_is_refused() -> None:
    schedule = Schedule("stuck", 1, 1, 1, ((Action(0, "B", 0), Action(0, "F", 0)),))
    with pytest.raises(PlanError, match="schedule stuck: rank 0 waits for ever before 0B0"):
        simulate(schedule, forward_s=1, backward_s=1)
