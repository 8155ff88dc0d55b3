"""Redistributions at borders: what is declared is what DTensor's redistribute does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.graph import Tensor
from planner.ir.placement import RP, Layout, P, Placement, R, S
from planner.ir.strategy import Collective, Strategy
from planner.rules.border import transitions
from planner.rules.embedding import MASKED
from tests.rules.oracle import Recorder, distribute, ranks, to_torch, whole

pytestmark = pytest.mark.filterwarnings("ignore")


def activation(*shape: int, grad: bool = True, dtype: str = "float32") -> Tensor:
    return Tensor("x", shape, dtype, "x", grad)


def crossing(tensor: Tensor, before: Layout, after: Layout, degree: int = 4) -> tuple[Collective, ...]:
    (found,) = (s for s in transitions(tensor, degree) if s.inputs == (before,) and s.outputs == (after,))
    return found.collectives


@pytest.mark.parametrize("degree", [2, 4])
def test_redistribute_communicates_what_is_declared(degree: int) -> None:
    """Kinds and bytes, forward on the value and backward on the gradient, and the value survives."""
    tensor = activation(4, 8, 16)
    value = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3))
    with ranks(degree) as mesh:
        for strategy in transitions(tensor, degree):
            (before,), (after,) = strategy.inputs, strategy.outputs
            if MASKED in (before, after):
                continue  # made by a lookup only: test_a_masked_sum_redistributes_like_a_sum
            for phase, source, target in (("forward", before.value, after.value), ("backward", after.grad, before.grad)):
                placed = distribute(value, source, mesh)
                with Recorder() as recorder:
                    moved = placed.redistribute(placements=[to_torch(target)])
                stated = [(c.kind, c.nbytes) for c in strategy.collectives if c.phase == phase]
                assert (str(strategy), phase, stated) == (str(strategy), phase, recorder.seen)
                torch.testing.assert_close(whole(moved), value, atol=1e-5, rtol=1e-5)


def test_a_masked_sum_redistributes_like_a_sum() -> None:
    """What a lookup in a table split by rows leaves is reduced by one all_reduce or reduce_scatter of the whole result."""
    table, tokens = torch.randn(16, 8), torch.tensor([[0, 3, 15, 4], [8, 9, 1, 2]])
    result = activation(2, 4, 8)
    with ranks(2) as mesh:
        for after in (R, S(0), S(2)):
            looked_up = torch.ops.aten.embedding.default(distribute(table, Placement("S", 0), mesh), distribute(tokens, R.value, mesh))
            with Recorder() as recorder:
                moved = looked_up.redistribute(placements=[to_torch(after.value)])
            stated = [(c.kind, c.nbytes) for c in crossing(result, MASKED, after, 2) if c.phase == "forward"]
            assert stated == recorder.seen
            torch.testing.assert_close(whole(moved), table[tokens])


def test_megatron_sequence_parallel_border() -> None:
    """Sequence slices to the input of a column-parallel linear: all_gather forward, reduce_scatter backward, of the whole tensor."""
    stated = (Collective("all_gather", "tp", "forward", 2048), Collective("reduce_scatter", "tp", "backward", 2048))
    assert stated == crossing(activation(4, 8, 16), S(1), RP)


def test_bytes_follow_the_dtype() -> None:
    assert (Collective("all_reduce", "tp", "forward", 256),) == crossing(activation(4, 8, 4, dtype="bfloat16"), P, R)


def test_without_gradient_there_is_no_backward() -> None:
    """A conversion costs one collective, forward: whole from slices or sums, slices from sums or other slices."""
    found = transitions(activation(4, 4, grad=False), 2)
    assert [("all_gather", "forward"), ("all_to_all", "forward")] * 2 + [("all_reduce", "forward"), *[("reduce_scatter", "forward")] * 2] == [
        (c.kind, c.phase) for s in found for c in s.collectives if MASKED not in s.inputs
    ]


def test_degree_one_has_nothing_to_choose() -> None:
    assert (Strategy((R,), (R,), divided=False),) == transitions(activation(4, 8), 1)


def test_the_first_transition_changes_nothing() -> None:
    assert Strategy((R,), (R,), divided=False) == transitions(activation(4, 8), 2)[0]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.sampled_from([2, 3, 4]), st.booleans())
def test_no_detour_is_cheaper(shape: list[int], degree: int, grad: bool) -> None:
    """Ring time of a direct transition is never more than that of two transitions in a row, and slices are always even."""
    found = {(s.inputs[0], s.outputs[0]): wire(s, degree) for s in transitions(activation(*shape, grad=grad), degree)}
    for (before, middle), first in found.items():
        assert all(shape[layout.value.dim] % degree == 0 for layout in (before, middle) if layout.value.is_shard)
        for (start, after), second in found.items():
            if start == middle and (before, after) in found:
                assert found[before, after] <= first + second + 1e-9


def wire(strategy: Strategy, degree: int) -> float:
    """Bytes that one rank sends, on a ring."""
    hops = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    return math.fsum(hops[c.kind] * c.nbytes * (degree - 1) / degree for c in strategy.collectives)
