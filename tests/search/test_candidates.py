"""The candidates are all factorisations and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InfeasibleError
from planner.ir.options import Options
from planner.search.candidates import Legality, candidates, divisors

FREE = Legality(tp=(1, 2, 4, 8), max_stages=8, microbatch_size=0, has_blocks=True, refused=())


@given(st.integers(1, 64), st.integers(1, 128))
def test_every_candidate_uses_all_devices_and_the_whole_batch(devices: int, batch: int) -> None:
    found, _ = candidates(devices, FREE, Options(global_batch=batch))
    assert {(devices, batch)} >= {(c.mesh.world_size, c.global_batch) for c in found}
    assert len(set(found)) == len(found)


def test_every_factorisation_is_there() -> None:
    """8 devices: all (pp, dp_replicate, dp_shard, tp) with that product."""
    found, _ = candidates(8, FREE, Options(global_batch=64))
    expected = {(p, r, s, t) for p in divisors(8) for r in divisors(8) for s in divisors(8) for t in divisors(8) if p * r * s * t == 8}
    assert expected == {(c.mesh.pp, c.mesh.dp_replicate, c.mesh.dp_shard, c.mesh.tp) for c in found}


def test_a_batch_that_ranks_cannot_share_is_explained() -> None:
    found, refused = candidates(4, FREE, Options(global_batch=3))
    assert {1} == {c.mesh.dp for c in found}
    assert "the global batch of 3 is not divisible by 4 data-parallel ranks" in {reason.why for reason in refused}


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ((("tp", 3),), r"--mesh tp=3 does not divide 8 GPUs; use one of 1, 2, 4, 8"),
        ((("cp", 2),), r"--mesh cp=2: cp is not planned yet; pin pp, dp_replicate, dp_shard, tp only"),
        ((("xx", 2),), r"--mesh xx=2: no such axis"),
        ((("tp", 4), ("pp", 4)), r"--mesh tp=4,pp=4 makes 16 ranks, which does not fit 8 GPUs"),
    ],
)
def test_pins_that_cannot_hold_are_refused(mesh: tuple[tuple[str, int], ...], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        candidates(8, FREE, Options(mesh=mesh))
