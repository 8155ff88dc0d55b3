"""What a rank holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.errors import HardwareError
from costmodels.gpt import layer_activation_bytes
from costmodels.hardware import Device, preset
from costmodels.memory import STATE_PRESETS, Precision, Sharding, StateBytes, Weights, in_flight, reserve_bytes, state_bytes
from tests.costmodels.sc21 import SEQUENCE, TABLE_1, VOCABULARY, Row

FP32 = Precision(4, 4, 4)
MIXED = Precision(4, 2, 4)
MILLION = Weights(numel=1_000_000, trainable_numel=1_000_000, block_numel=100_000)


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        (Sharding(0, 1, accumulates=True), StateBytes(4_000_000, 4_000_000, 8_000_000)),
        (Sharding(0, 1, accumulates=False, dp_replicate=4), StateBytes(8_000_000, 4_800_000, 8_000_000)),
        (Sharding(1, 4, accumulates=False), StateBytes(5_000_000, 1_800_000, 2_000_000)),
        (Sharding(1, 4, accumulates=True), StateBytes(5_000_000, 4_800_000, 2_000_000)),
        (Sharding(2, 4, accumulates=False), StateBytes(5_000_000, 1_800_000, 2_000_000)),
        (Sharding(3, 4, accumulates=False), StateBytes(1_800_000, 1_800_000, 2_000_000)),
        (Sharding(3, 4, accumulates=True), StateBytes(1_800_000, 4_800_000, 2_000_000)),
    ],
    ids=str,
)
def test_state_of_a_million_fp32_parameters(sharding: Sharding, expected: StateBytes) -> None:
    """By hand: 4 bytes each of weights, gradients and two states; blocks of 100,000."""
    assert expected == state_bytes(MILLION, precision=FP32, sharding=sharding)


def test_mixed_precision_keeps_a_cast_copy_and_reduces_in_fp32() -> None:
    """fp32 shard and bf16 copy; fp32 gradient shard, and one block in bf16 and in fp32."""
    state = state_bytes(MILLION, precision=MIXED, sharding=Sharding(2, 4, accumulates=False))
    assert StateBytes(1_000_000 + 2_000_000, 1_000_000 + 600_000, 2_000_000) == state


def test_frozen_parameters_have_neither_gradients_nor_states() -> None:
    """Of a million parameters 1000 train."""
    state = state_bytes(Weights(1_000_000, 1000, 1000), precision=FP32, sharding=Sharding(0, 1, accumulates=False))
    assert StateBytes(4_000_000, 4000, 8000) == state


@pytest.mark.parametrize(("name", "expected"), [("megatron", 18), ("zero-offload", 16), ("elixir", 14), ("torch-adamw", 16)])
def test_bytes_per_parameter(name: str, expected: int) -> None:
    """The papers' figures; AdamW on fp32 parameters happens to need 16 as well."""
    assert expected == sum(STATE_PRESETS[name].bytes_of(4))


weights = st.builds(
    lambda numel, trained, block: Weights(numel, min(trained, numel), min(block, numel)),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 10**8),
)


@given(weights, st.sampled_from((FP32, MIXED)), st.integers(1, 64), st.booleans())
def test_each_level_needs_no_more_than_the_one_below(what: Weights, precision: Precision, shards: int, accumulates: bool) -> None:
    """Level 3 <= 2 <= 1, and 1 <= 0 over the same ranks, up to the rounding of a shard."""
    zero = Sharding(0, 1, accumulates, dp_replicate=shards)
    levels = [zero, *(Sharding(level, shards, accumulates) for level in (1, 2, 3))]
    totals = [state_bytes(what, precision=precision, sharding=level).total for level in levels]
    assert sorted(totals, reverse=True) == totals


@given(weights, st.sampled_from((1, 2, 3)), st.integers(1, 32), st.integers(2, 4))
def test_more_shards_need_no_more_memory(what: Weights, level: int, shards: int, times: int) -> None:
    fewer = state_bytes(what, precision=MIXED, sharding=Sharding(level, shards, accumulates=False))
    more = state_bytes(what, precision=MIXED, sharding=Sharding(level, shards * times, accumulates=False))
    assert fewer.total >= more.total


def test_unknown_names_are_refused() -> None:
    with pytest.raises(HardwareError, match="state preset 'adam' is unknown; known are torch-adamw, torch-sgd"):
        state_bytes(MILLION, precision=FP32, sharding=Sharding(0, 1, accumulates=False), preset="adam")
    with pytest.raises(HardwareError, match="ZeRO level 4 does not exist; use 0, 1, 2 or 3"):
        state_bytes(MILLION, precision=FP32, sharding=Sharding(4, 1, accumulates=False))
    with pytest.raises(HardwareError, match="schedule 'zigzag' has no closed form of its memory"):
        in_flight("zigzag", rank=0, ranks=2, microbatches=4)


def test_reserve_is_context_and_fragmentation() -> None:
    device = Device("toy", 1000, 1.0, (("float32", 1.0),), launch_s=0.0, context_bytes=70, fragmentation=0.1)
    assert 170 == reserve_bytes(device)


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row.billions}B")
def test_table_1_fits_in_80_gb(row: Row) -> None:
    """Every layout of SC21 Table 1 fits with 18 bytes per parameter and full recompute: it was run."""
    needed = max(_rank_bytes(row, rank=rank) for rank in range(row.pp))
    assert needed < _usable_bytes()


def test_full_replication_of_18b_does_not_fit() -> None:
    """18.4B parameters on one device of 80 GB: 332 GB of state."""
    row = Row(18.4, 48, 6144, 40, 1, 1, 1, 1, 1024, 256, 0, 0, 0, 0)
    assert _rank_bytes(row, rank=0) > _usable_bytes()


def _usable_bytes() -> int:
    device = preset("a100-80g").device
    return device.memory_bytes - reserve_bytes(device)


def _rank_bytes(row: Row, *, rank: int) -> float:
    """State, inputs of the layers in flight, one layer being recomputed, and on the last rank logits in 16 and their gradient in 32 bit."""
    layers = row.layers // row.pp * (12 * row.hidden**2 + 13 * row.hidden) // row.tp
    embedding = VOCABULARY * row.hidden // row.tp if rank in (0, row.pp - 1) else 0
    numel = layers + embedding + (SEQUENCE * row.hidden if rank == 0 else 0)
    state = state_bytes(Weights(numel, numel, 0), precision=Precision(2, 2, 4), sharding=Sharding(0, 1, accumulates=False), preset="megatron")
    shape = {"batch": row.microbatch, "sequence": SEQUENCE, "hidden": row.hidden, "heads": row.heads, "tp": row.tp}
    schedule = "interleaved" if row.virtual > 1 else "1f1b"
    chunks = in_flight(schedule, rank=rank, ranks=row.pp, microbatches=row.microbatches, virtual=row.virtual)
    kept = chunks * row.layers // (row.pp * row.virtual) * layer_activation_bytes("full", **shape)
    logits = 6 * row.microbatch * SEQUENCE * VOCABULARY // row.tp if rank == row.pp - 1 else 0
    return state.total + kept + layer_activation_bytes("none", **shape) + logits
