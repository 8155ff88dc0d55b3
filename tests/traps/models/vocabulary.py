"""Trap 4: a cross entropy over a vocabulary, with as many ignored tokens as a sample's number says."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, LENGTH = 8, 6


class Speaker(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(tokens)))


def model() -> nn.Module:
    """Nothing divides 257; as 50257, it is odd."""
    return Speaker(257)


def even() -> nn.Module:
    return Speaker(256)


def inputs(batch_size: int) -> dict[str, Tensor]:
    shape = (batch_size, LENGTH)
    labels = torch.randint(256, shape)
    ignored = torch.arange(LENGTH) < (torch.arange(batch_size) % LENGTH)[:, None]
    return {"tokens": torch.randint(256, shape), "labels": labels.masked_fill(ignored, -100)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def weight(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())
