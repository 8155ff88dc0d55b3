"""Trap 11: frozen linears with adapters of rank 4."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, RANK = 16, 4


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.frozen(x) + self.up(self.down(x)))


def model() -> nn.Module:
    return nn.Sequential(*(Adapted() for _ in range(4)))


def whole() -> nn.Module:
    """The same, all of it trained."""
    return model().requires_grad_(True)


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"input": torch.randn(batch_size, 3, WIDTH), "target": torch.randn(batch_size, 3, WIDTH)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
