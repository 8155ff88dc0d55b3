"""Trap 12: an in-place activation behind a row-split product, batch norm with its counter, a view across the split dim."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 8


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.exit = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.relu_(self.up(x)))
        y.relu_()
        y = self.norm(y.view(-1).view(-1, WIDTH))
        return self.exit(y)


def model() -> nn.Module:
    return InPlace()


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, WIDTH), "target": torch.randn(batch_size, WIDTH)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
