"""Trap 9: keyword-only inputs, an absent one, a dict with None and a nested tuple as the output."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Tensor:
        y = torch.tanh(self.linear(x))
        return y if scale is None else y * scale


class Nested(nn.Module):
    """`scaled` says whether its batches hold a scale, which both stages read."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.scaled = scaled
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, *, x: Tensor, scale: Tensor | None = None) -> dict[str, object]:
        a = self.layers[0](x, scale=scale)
        b = self.layers[1](a, scale=scale)
        return {"logits": self.head(b), "past": None, "hid": (a, b)}


def model() -> nn.Module:
    return Nested(scaled=False)


def scaled() -> nn.Module:
    return Nested(scaled=True)


def inputs(batch_size: int, model: Nested) -> dict[str, Tensor]:
    batch = {"x": torch.randn(batch_size, WIDTH), "target": torch.randn(batch_size, WIDTH)}
    return batch | {"scale": torch.rand(batch_size, 1)} if model.scaled else batch


def loss(output: dict[str, object], batch: dict[str, Tensor]) -> Tensor:
    """Reads every leaf of the output under its own key."""
    assert ["logits", "past", "hid"] == list(output)
    assert output["past"] is None
    first, second = output["hid"]
    return F.mse_loss(output["logits"], batch["target"]) + 0.1 * first.square().mean() + 0.2 * second.square().mean()
