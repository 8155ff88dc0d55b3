"""Two towers for retrieval: a query and each of its candidates are encoded apart and compared by a dot product.

Every sample brings its own candidates, and the loss is the cross entropy of the right one. Sharing candidates within the batch, as often
done, would make the loss depend on how the batch is split.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    hidden: int
    vocab_size: int
    words: int
    candidates: int


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Tower(nn.Module):
    """Texts [b, n, words] to vectors [b, n, width]: the mean of the words' embeddings, then perceptrons."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mean(2)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class TwoTower(nn.Module):
    """Scores of the candidates [b, candidates] from query [b, words] and candidates [b, candidates, words]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.query = Tower(config)
        self.candidate = Tower(config)

    def forward(self, query: Tensor, candidates: Tensor) -> Tensor:
        scores = torch.bmm(self.query(query.unsqueeze(1)), self.candidate(candidates).transpose(1, 2))
        return scores.squeeze(1) * self.config.width**-0.5


def tiny(layers: int = 3) -> TwoTower:
    return TwoTower(Config(layers=layers, width=16, hidden=32, vocab_size=64, words=8, candidates=4))


def large() -> TwoTower:
    """2.3 billion parameters, nine tenths of them in the embedding tables."""
    return TwoTower(Config(layers=12, width=1024, hidden=4096, vocab_size=1000000, words=32, candidates=64))


def model() -> TwoTower:
    return large()


def inputs(batch_size: int, model: TwoTower) -> dict[str, Tensor]:
    config = model.config
    return {
        "query": torch.randint(config.vocab_size, (batch_size, config.words)),
        "candidates": torch.randint(config.vocab_size, (batch_size, config.candidates, config.words)),
        "labels": torch.randint(config.candidates, (batch_size,)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output, batch["labels"])
