"""The roofline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.compute import memory_s, mfu, op_s
from costmodels.gpt import iteration_flop
from costmodels.hardware import preset
from tests.costmodels.machines import DEVICE
from tests.costmodels.sc21 import TABLE_1, VOCABULARY

sizes = st.floats(0, 1e18)


@pytest.mark.parametrize(
    ("flop", "nbytes", "dtype", "expected"),
    [
        (100, 8, "float32", 0.25 + 2.0),
        (100, 8, "bfloat16", 0.25 + 1.0),
        (100, 80, "float32", 0.25 + 10.0),
        (1, 1, "float32", 0.5),
        (0, 0, "float32", 0.0),
    ],
    ids=["compute-bound", "faster dtype, memory-bound", "memory-bound", "launch-bound", "nothing to do"],
)
def test_by_hand(flop: float, nbytes: float, dtype: str, expected: float) -> None:
    """100 FLOP/s at half, 10 bytes/s at 0.8, ramp 0.25 s, at least 0.5 s."""
    assert expected == op_s(flop, nbytes, dtype=dtype, device=DEVICE)


@given(sizes, sizes, sizes, sizes)
def test_more_work_never_takes_less_time(flop: float, nbytes: float, more_flop: float, more_bytes: float) -> None:
    device = preset("h100").device
    less = op_s(flop, nbytes, dtype="bfloat16", device=device)
    assert less <= op_s(flop + more_flop, nbytes + more_bytes, dtype="bfloat16", device=device)


def test_memory_rate() -> None:
    assert 10.0 == memory_s(80, device=DEVICE)


def test_mfu_of_table_1() -> None:
    """The 1.7B run reached 44 % of peak with recomputed FLOPs counted, so 33 % of model FLOPs."""
    row = TABLE_1[0]
    device = preset("a100-80g").device
    flops = [
        iteration_flop(batch=row.batch, sequence=2048, layers=row.layers, hidden=row.hidden, vocabulary=VOCABULARY, recompute=recompute)
        for recompute in (True, False)
    ]
    shares = [mfu(flop, step_s=row.iteration_s, devices=row.devices, dtype="float16", device=device) for flop in flops]
    assert [0.44, 0.33] == [round(share, 2) for share in shares]


def test_a_large_product_on_a100_reaches_what_was_measured() -> None:
    """8192^3 in bf16 on an A100 takes between 4.2 ms (260 TFLOP/s, the best found in public) and 5.5 ms (200 TFLOP/s)."""
    seconds = op_s(2 * 8192**3, 3 * 2 * 8192**2, dtype="bfloat16", device=preset("a100-80g").device)
    assert 4.2e-3 < seconds < 5.5e-3
