"""Trap 1: an embedding and a head share one parameter."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH = 12, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Tied(nn.Module):
    """`blocks` of them between the embedding and the head."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model() -> nn.Module:
    return Tied(2)


def bare() -> nn.Module:
    """Nothing between the two."""
    return Tied(0)


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"tokens": torch.randint(VOCABULARY, (batch_size, 4)), "labels": torch.randint(VOCABULARY, (batch_size, 4))}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())
