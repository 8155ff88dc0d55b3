"""Small models that each hold one difficulty of parallel training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import gpt


class HeadScale(nn.Module):
    """A replicated parameter inside a tensor-parallel region: every head is scaled by one vector (trap 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.scale = nn.Parameter(torch.empty(4))
        self.down = nn.Linear(16, 8)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        return self.down((self.up(x).view(b, s, 4, 4) * self.scale).view(b, s, 16))


class Uninitialised(nn.Module):
    """A parameter and a buffer that nothing sets after a start on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


def inputs(batch_size: int, model: nn.Module) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, 3, 8), "target": torch.randn(batch_size, 3, 8)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])


def weight(batch: dict[str, Tensor]) -> float:
    return float(batch["x"].shape[0])


def odd_gpt() -> gpt.GPT:
    """A vocabulary that no even degree divides (trap 4)."""
    return gpt.GPT(gpt.Config(layers=2, width=32, heads=4, vocab_size=61, max_seq=16))


class DropBlock(nn.Module):
    """Dropout of a tensor that tp shards, and of one that it does not; both are of ones, so that outputs show the masks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 64)
        self.inner = nn.Dropout(0.25)
        self.down = nn.Linear(64, 8)
        self.outer = nn.Dropout(0.25)
        with torch.no_grad():
            self.up.weight.zero_()
            self.up.bias.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.inner(self.up(x)))
        return y * self.outer(torch.ones_like(y))


class Drops(nn.Module):
    """One block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DropBlock()])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)
