"""Llama 3: grouped-query attention, rotary positions, RMSNorm, SwiGLU, untied head.

Sizes: Grattafiori et al. 2024, table 3. The frequency scaling of Llama 3.1 changes no shape and is left out.
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
    kv_heads: int
    hidden: int
    vocab_size: int = 128256
    max_seq: int = 8192
    rope_theta: float = 500000.0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Rope(nn.Module):
    """Cosines and sines of the rotary embedding, [max_seq, head_dim]; the two halves of a head are rotated against each other."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.theta = config.rope_theta
        self.register_buffer("cos", torch.empty(config.max_seq, config.head_dim), persistent=False)
        self.register_buffer("sin", torch.empty(config.max_seq, config.head_dim), persistent=False)
        self.init_buffers()

    def init_buffers(self) -> None:
        max_seq, head_dim = self.cos.shape
        exponent = torch.arange(0, head_dim, 2, device=self.cos.device, dtype=torch.float64) / head_dim
        position = torch.arange(max_seq, device=self.cos.device, dtype=torch.float64)
        angle = torch.outer(position, self.theta**-exponent).repeat(1, 2)
        self.cos.copy_(angle.cos())
        self.sin.copy_(angle.sin())

    def forward(self, seq: int) -> tuple[Tensor, Tensor]:
        """In float32; the caller casts, because torch.export lets no dtype into a module as an argument."""
        return self.cos[:seq], self.sin[:seq]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, seq, heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.wq = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, s, _ = x.shape
        q = rotate(self.wq(x).view(b, s, self.heads, self.head_dim), cos, sin).transpose(1, 2)
        k = rotate(self.wk(x).view(b, s, self.kv_heads, self.head_dim), cos, sin).transpose(1, 2)
        v = self.wv(x).view(b, s, self.kv_heads, self.head_dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, self.heads * self.head_dim))

    def repeat(self, x: Tensor) -> Tensor:
        """Every key and value head once per query head of its group: [b, kv_heads, s, d] to [b, heads, s, d]."""
        b, _, s, d = x.shape
        groups = self.heads // self.kv_heads
        return x.unsqueeze(2).expand(b, self.kv_heads, groups, s, d).reshape(b, self.heads, s, d)


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = MLP(config.width, config.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width)
        self.rope = Rope(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = (table.to(x.dtype) for table in self.rope(tokens.shape[1]))  # or a bfloat16 step would be promoted
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def tiny(layers: int = 4) -> Llama:
    return Llama(Config(layers=layers, width=32, heads=8, kv_heads=4, hidden=64, vocab_size=64, max_seq=16))


def llama_8b() -> Llama:
    return Llama(Config(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336))


def llama_70b() -> Llama:
    return Llama(Config(layers=80, width=8192, heads=64, kv_heads=8, hidden=28672))


def llama_405b() -> Llama:
    return Llama(Config(layers=126, width=16384, heads=128, kv_heads=8, hidden=53248))


def model() -> Llama:
    return llama_8b()


def inputs(batch_size: int, model: Llama) -> dict[str, Tensor]:
    shape = (batch_size, model.config.max_seq)
    return {
        "tokens": torch.randint(model.config.vocab_size, shape),
        "labels": torch.randint(model.config.vocab_size, shape),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def weight(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())
