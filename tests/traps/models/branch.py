"""Trap 13: a branch on data; a batch smaller than the mesh."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 8


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.linear(x)
        return -self.linear(x)


class Branching(nn.Module):
    """The branch lies between two modules that are recorded operator by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.branch = Branch()
        self.exit = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(self.branch(torch.exp(self.entry(x))))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


def model() -> nn.Module:
    return Branching()


def alone() -> nn.Module:
    return Branch()


def plain() -> nn.Module:
    return Plain()


def inputs(batch_size: int) -> dict[str, Tensor]:
    """One token a sample; their sum is positive."""
    return {"x": torch.rand(batch_size, 1, WIDTH), "target": torch.randn(batch_size, 1, WIDTH)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
