"""Every trap that can be planned runs as one process does, and communicates as predicted."""

from __future__ import annotations

import pytest

from tests.execution.test_execution import failures
from tests.traps.cells import REFUSED, WORLDS, cells
from tests.traps.conftest import Ran

CELLS = [(ranks, name) for ranks, world in WORLDS.items() for name in world if name not in REFUSED]


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "name"), CELLS)
def test_a_trap_runs_as_one_process(ranks: int, name: str, ran: Ran) -> None:
    """Loss, gradients, their norm, weights and buffers after three clipped AdamW steps, on every rank; number and bytes of all collectives."""
    assert {} == failures([cells(ranks)[name]], ran(ranks))
