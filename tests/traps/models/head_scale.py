"""Trap 5: a vector for every head, replicated, inside a tensor-parallel region."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class HeadScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.down = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        return self.down((self.up(x).view(b, s, 8, 4) * self.scale).view(b, s, 32))


def model() -> nn.Module:
    return HeadScale()


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, 3, 8), "target": torch.randn(batch_size, 3, 8)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
