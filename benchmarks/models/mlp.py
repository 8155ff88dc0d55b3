"""A chain of two-layer perceptrons, regressed onto a target: the smallest model with a column-then-row plan."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    hidden: int


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def tiny(layers: int = 4) -> MLP:
    return MLP(Config(layers=layers, width=16, hidden=32))


def wide() -> MLP:
    """2.1 billion parameters."""
    return MLP(Config(layers=4, width=8192, hidden=32768))


def model() -> MLP:
    return wide()


def inputs(batch_size: int, model: MLP) -> dict[str, Tensor]:
    shape = (batch_size, model.config.width)
    return {"x": torch.randn(shape), "target": torch.randn(shape)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
