"""GPT-2 and GPT-3: learned positions, pre-norm blocks, GELU, output head tied to the token embedding.

Sizes: Radford et al. 2019 (gpt2_small), Brown et al. 2020, table 2.1 (gpt3_2b7, gpt3_175b). GPT-3's banded attention is dense here.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    vocab_size: int = 50257
    max_seq: int = 2048
    dropout: float = 0.0


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.wq = nn.Linear(config.width, config.width)
        self.wk = nn.Linear(config.width, config.width)
        self.wv = nn.Linear(config.width, config.width)
        self.wo = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, width = x.shape
        shape = (b, s, self.heads, width // self.heads)
        q = self.wq(x).view(shape).transpose(1, 2)
        k = self.wk(x).view(shape).transpose(1, 2)
        v = self.wv(x).view(shape).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, width))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = MLP(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attention(self.attention_norm(x)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.mlp_norm(x)), self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width)
        self.position = Embedding(config.max_seq, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(positions)
        x = F.dropout(x, self.config.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def tiny(layers: int = 4, dropout: float = 0.0) -> GPT:
    return GPT(Config(layers=layers, width=32, heads=4, vocab_size=64, max_seq=16, dropout=dropout))


def gpt2_small(dropout: float = 0.0) -> GPT:
    return GPT(Config(layers=12, width=768, heads=12, max_seq=1024, dropout=dropout))


def gpt3_2b7() -> GPT:
    return GPT(Config(layers=32, width=2560, heads=32))


def gpt3_175b() -> GPT:
    return GPT(Config(layers=96, width=12288, heads=96))


def model() -> GPT:
    return gpt2_small()


def inputs(batch_size: int, model: GPT) -> dict[str, Tensor]:
    shape = (batch_size, model.config.max_seq)
    return {
        "tokens": torch.randint(model.config.vocab_size, shape),
        "labels": torch.randint(model.config.vocab_size, shape),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def weight(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())
