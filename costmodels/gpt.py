"""Closed forms for GPT-like transformers from the papers: the yardstick for the general models, and the way to check a plan by hand.

Symbols: B sequences per iteration, b per microbatch, s tokens each, l layers, h hidden, a heads, V vocabulary, t tensor parallel degree.
Parameters, FLOPs and training time are equations 2 to 4 of Narayanan et al., SC21 (arXiv:2104.04473); activations are those of Korthikanti
et al. (arXiv:2205.05198), in 16 bit with 1 byte per dropout mask. Leaves out: anything that is not a standard GPT layer.
"""

from __future__ import annotations

from costmodels.errors import HardwareError


def megatron_parameters(*, layers: int, hidden: int, vocabulary: int, sequence: int) -> int:
    """Parameters: 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh)."""
    return 12 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + sequence) * hidden


def iteration_flop(*, batch: int, sequence: int, layers: int, hidden: int, vocabulary: int, recompute: bool) -> int:
    """FLOPs of one iteration: forward, backward (twice that) and, with `recompute`, a second forward of every layer.

    With recompute 96 B s l h^2 (1 + s / 6h + V / 16lh); without, layers count 3 times instead of 4 and logits the same.
    """
    layer = 24 * batch * sequence * hidden**2 + 4 * batch * sequence**2 * hidden
    return (4 if recompute else 3) * layers * layer + 6 * batch * sequence * hidden * vocabulary


def training_s(*, tokens: float, parameters: float, devices: int, flop_per_s: float) -> float:
    """Seconds to train on `tokens` tokens with full recompute at a reached `flop_per_s` per device: 8 T P / (n X)."""
    return 8 * tokens * parameters / (devices * flop_per_s)


def layer_activation_bytes(policy: str, *, batch: int, sequence: int, hidden: int, heads: int, tp: int = 1) -> float:
    """Bytes that one layer keeps for backward on one rank; `batch` is the microbatch.

    `policy` is one of "none", "none+sp", "selective", "selective+sp" and "full", where sp is sequence parallelism and selective recomputes
    the attention scores. "full" keeps the layer's input on every rank. Raises HardwareError for another policy.
    """
    element = batch * sequence * hidden
    scores = 5 * heads * sequence / hidden
    per_element = {
        "none": 10 + (24 + scores) / tp,
        "none+sp": (34 + scores) / tp,
        "selective": 10 + 24 / tp,
        "selective+sp": 34 / tp,
        "full": 2,
    }
    if policy not in per_element:
        raise HardwareError(f"recompute policy {policy!r} is unknown; known are {', '.join(per_element)}")
    return element * per_element[policy]
