"""The papers' numbers come out of the papers' formulas."""

from __future__ import annotations

import pytest

from costmodels.errors import HardwareError
from costmodels.gpt import iteration_flop, layer_activation_bytes, megatron_parameters, training_s
from tests.costmodels.sc21 import SEQUENCE, TABLE_1, VOCABULARY, Row

rows = pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row.billions}B")


@rows
def test_parameters_of_table_1(row: Row) -> None:
    """Equation 2 gives the printed sizes and the exact integers."""
    parameters = megatron_parameters(layers=row.layers, hidden=row.hidden, vocabulary=VOCABULARY, sequence=SEQUENCE)
    assert row.parameters == parameters
    assert row.billions == round(parameters / 1e9, 1)


@rows
def test_flop_of_table_1(row: Row) -> None:
    """Equation 3 gives the exact FLOPs, and with the measured rate the iteration time."""
    flop = iteration_flop(batch=row.batch, sequence=SEQUENCE, layers=row.layers, hidden=row.hidden, vocabulary=VOCABULARY, recompute=True)
    assert row.flop == flop
    assert row.iteration_s == round(flop / (row.devices * row.tflop_per_s * 1e12), 3)


def test_recompute_adds_one_forward_of_the_layers() -> None:
    """With and without recompute differ by a quarter of the layers' FLOPs; the logits are never recomputed."""
    shape = {"batch": 4, "sequence": 128, "layers": 6, "hidden": 64, "vocabulary": 1000}
    full, none = iteration_flop(**shape, recompute=True), iteration_flop(**shape, recompute=False)
    logits = 6 * 4 * 128 * 64 * 1000
    assert (full - logits) * 3 == (none - logits) * 4


def test_training_time() -> None:
    """Equation 4: 34 days for 175B on 1024 A100, 84 for 1008B on 3072."""
    small = training_s(tokens=300e9, parameters=175e9, devices=1024, flop_per_s=140e12)
    large = training_s(tokens=450e9, parameters=1008e9, devices=3072, flop_per_s=163e12)
    assert (34, 84) == (round(small / 86400), round(large / 86400))


@pytest.mark.parametrize(
    ("hidden", "heads", "percent"),
    [
        (6144, 64, {"none+sp": 66.8, "selective": 49.4, "selective+sp": 16.2, "full": 7.6}),
        (12288, 96, {"none+sp": 62.0, "selective": 56.5, "selective+sp": 18.5, "full": 8.7}),
        (20480, 128, {"none+sp": 58.3, "selective": 62.0, "selective+sp": 20.3, "full": 9.4}),
    ],
    ids=["22B", "175B", "530B"],
)
def test_activations_of_korthikanti_figure_7(hidden: int, heads: int, percent: dict[str, float]) -> None:
    """Per cent of the memory without recompute and sequence parallelism, at tp=8 and 2048 tokens (figure 7 of arXiv:2205.05198)."""
    shape = {"batch": 1, "sequence": 2048, "hidden": hidden, "heads": heads, "tp": 8}
    whole = layer_activation_bytes("none", **shape)
    for policy, expected in percent.items():
        assert expected == pytest.approx(100 * layer_activation_bytes(policy, **shape) / whole, abs=0.15)


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(HardwareError, match="recompute policy 'half' is unknown; known are none, none\\+sp, selective"):
        layer_activation_bytes("half", batch=1, sequence=1, hidden=1, heads=1)
