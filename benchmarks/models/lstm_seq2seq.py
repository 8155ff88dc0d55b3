"""Sequence to sequence with LSTMs and global attention over the encoder's states (Luong et al. 2015, dot score).

`lstm_1024` has the sizes that device-placement and hybrid-parallel papers train: 4 layers of 1024, 32,000 words.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    vocab_size: int
    max_seq: int


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.1)


class Attention(nn.Module):
    """Joins each decoder state [b, t, width] with its mean of the encoder's states [b, s, width] under softmax weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.join = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        share = torch.bmm(x, memory.transpose(1, 2)).softmax(-1)
        return torch.tanh(self.join(torch.cat((torch.bmm(share, memory), x), dim=-1)))


class Seq2Seq(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = Embedding(config.vocab_size, config.width)
        self.target_embedding = Embedding(config.vocab_size, config.width)
        self.encoder = nn.LSTM(config.width, config.width, config.layers, batch_first=True)
        self.decoder = nn.LSTM(config.width, config.width, config.layers, batch_first=True)
        self.attention = Attention(config.width)
        self.head = nn.Linear(config.width, config.vocab_size)

    def forward(self, tokens: Tensor, decoder_tokens: Tensor) -> Tensor:
        memory, state = self.encoder(self.source_embedding(tokens))
        x, _ = self.decoder(self.target_embedding(decoder_tokens), state)
        return self.head(self.attention(x, memory))


def tiny(layers: int = 2) -> Seq2Seq:
    return Seq2Seq(Config(layers=layers, width=32, vocab_size=64, max_seq=8))


def lstm_1024() -> Seq2Seq:
    return Seq2Seq(Config(layers=4, width=1024, vocab_size=32000, max_seq=64))


def model() -> Seq2Seq:
    return lstm_1024()


def inputs(batch_size: int, model: Seq2Seq) -> dict[str, Tensor]:
    shape = (batch_size, model.config.max_seq)
    return {name: torch.randint(model.config.vocab_size, shape) for name in ("tokens", "decoder_tokens", "labels")}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def weight(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())
