"""T5: encoder and decoder with relative position biases, RMSNorm, no linear biases, head tied to the embedding.

Sizes: Raffel et al. 2019, section 3.7 (t5_base, t5_3b). Attention is unscaled and each stack shares one table of position biases, as there.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    head_dim: int
    hidden: int
    vocab_size: int = 32128
    max_seq: int = 512
    buckets: int = 32
    max_distance: int = 128


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.5)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class RelativeBias(nn.Module):
    """Bias of each head for each distance of key and query, [1, heads, seq, seq]; the future is masked if `causal`."""

    def __init__(self, config: Config, causal: bool) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.table = Embedding(config.buckets, config.heads)

    def forward(self, seq: int) -> Tensor:
        position = torch.arange(seq, device=self.table.weight.device)
        ahead = position - position.unsqueeze(1)
        bias = self.table(self.bucket(ahead)).permute(2, 0, 1).unsqueeze(0)
        return bias.masked_fill(ahead > 0, -torch.inf) if self.causal else bias

    def bucket(self, ahead: Tensor) -> Tensor:
        """Half of the buckets hold one distance each, the others grow up to `max_distance`; both directions have their own."""
        buckets = self.config.buckets if self.causal else self.config.buckets // 2
        single = buckets // 2
        distance = (-ahead).clamp(min=0) if self.causal else ahead.abs()
        growth = (distance.clamp(min=1) / single).log() / log(self.config.max_distance / single)
        far = (single + growth * (buckets - single)).long().clamp(max=buckets - 1)
        near = torch.where(distance < single, distance, far)
        return near if self.causal else near + buckets * (ahead > 0)


class Attention(nn.Module):
    """Queries from x [b, s, width], keys and values from `memory` [b, t, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.wq = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None = None) -> Tensor:
        b, s, _ = x.shape
        t = memory.shape[1]
        q = self.wq(x).view(b, s, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(memory).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        v = self.wv(memory).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.wo(y.transpose(1, 2).reshape(b, s, self.heads * self.head_dim))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class EncoderBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        y = self.attention_norm(x)
        x = x + self.attention(y, y, bias)
        return x + self.mlp(self.mlp_norm(x))


class DecoderBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config)
        self.cross_norm = RMSNorm(config.width)
        self.cross = Attention(config)
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor) -> Tensor:
        y = self.attention_norm(x)
        x = x + self.attention(y, y, bias)
        x = x + self.cross(self.cross_norm(x), memory)
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.bias = RelativeBias(config, causal=False)
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias(x.shape[1])
        for layer in self.layers:
            x = layer(x, bias)
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.bias = RelativeBias(config, causal=True)
        self.layers = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        bias = self.bias(x.shape[1])
        for layer in self.layers:
            x = layer(x, bias, memory)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, decoder_tokens: Tensor) -> Tensor:
        memory = self.encoder(self.embedding(tokens))
        x = self.decoder(self.embedding(decoder_tokens), memory)
        return self.head(x * self.config.width**-0.5)


def tiny(layers: int = 2) -> T5:
    return T5(Config(layers=layers, width=32, heads=4, head_dim=8, hidden=64, vocab_size=64, max_seq=16, buckets=8, max_distance=16))


def t5_base() -> T5:
    return T5(Config(layers=12, width=768, heads=12, head_dim=64, hidden=3072))


def t5_3b() -> T5:
    return T5(Config(layers=24, width=1024, heads=32, head_dim=128, hidden=16384))


def model() -> T5:
    return t5_base()


def inputs(batch_size: int, model: T5) -> dict[str, Tensor]:
    shape = (batch_size, model.config.max_seq)
    return {name: torch.randint(model.config.vocab_size, shape) for name in ("tokens", "decoder_tokens", "labels")}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def weight(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())
