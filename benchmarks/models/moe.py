"""Mixtral: the Llama block with eight experts in place of one MLP, two of them per token (Jiang et al. 2024, table 1).

Routing has a static capacity, as in GShard (Lepikhin et al. 2020): each sequence is a group, each expert takes at most
capacity_factor * top_k * seq / experts of its tokens, and what does not fit passes by on the residual alone. So every shape is known
before the data, and a sample's result does not depend on the rest of the batch. The auxiliary balance loss is left out.
"""

from dataclasses import dataclass
from math import ceil

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
    experts: int = 8
    top_k: int = 2
    capacity_factor: float = 1.25
    vocab_size: int = 32000
    max_seq: int = 4096
    rope_theta: float = 1000000.0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def capacity(self) -> int:
        """Tokens of one sequence that an expert takes."""
        return min(self.max_seq, ceil(self.capacity_factor * self.top_k * self.max_seq / self.experts))


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


class Experts(nn.Module):
    """SwiGLU experts side by side: x [experts, tokens, width] to the same shape, one batched product per weight."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(config.experts, config.width, config.hidden))
        self.up = nn.Parameter(torch.empty(config.experts, config.width, config.hidden))
        self.down = nn.Parameter(torch.empty(config.experts, config.hidden, config.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.gate, self.up, self.down):
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)


class Router(nn.Module):
    """The top experts of each token.

    From x [b, s, width]: `slot` [b, s * top_k] is the row of each choice in its sequence's buffer of experts * capacity rows, `share`
    [b, s * top_k] its weight (0 where the expert was full), `source` [b, experts * capacity] the token that each row is filled with.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.scores = nn.Linear(config.width, config.experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        b, s, _ = x.shape
        top, expert = self.scores(x).topk(config.top_k, dim=-1)
        expert = expert.reshape(b, s * config.top_k)
        chosen = expert.unsqueeze(-1) == torch.arange(config.experts, device=x.device)
        rank = (chosen.long().cumsum(1) - 1).gather(2, expert.unsqueeze(-1)).squeeze(-1)
        kept = rank < config.capacity
        rows = config.experts * config.capacity
        slot = torch.where(kept, expert * config.capacity + rank, rows)
        token = torch.arange(s * config.top_k, device=x.device) // config.top_k
        source = torch.zeros(b, rows + 1, dtype=torch.long, device=x.device).scatter(1, slot, token.expand(b, -1))
        share = top.softmax(-1).reshape(b, s * config.top_k) * kept
        return slot.clamp(max=rows - 1), share, source[:, :rows]


class MoE(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        config = self.config
        b, s, width = x.shape
        slot, share, source = self.router(x)
        rows = x.gather(1, source.unsqueeze(-1).expand(-1, -1, width))
        rows = rows.view(b, config.experts, config.capacity, width).transpose(0, 1).reshape(config.experts, b * config.capacity, width)
        rows = self.experts(rows)
        rows = rows.view(config.experts, b, config.capacity, width).transpose(0, 1).reshape(b, config.experts * config.capacity, width)
        chosen = rows.gather(1, slot.unsqueeze(-1).expand(-1, -1, width)) * share.unsqueeze(-1)
        return chosen.view(b, s, config.top_k, width).sum(2)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config)
        self.moe_norm = RMSNorm(config.width)
        self.moe = MoE(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.moe(self.moe_norm(x))


class Mixtral(nn.Module):
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


def tiny(layers: int = 4) -> Mixtral:
    return Mixtral(Config(layers=layers, width=32, heads=8, kv_heads=4, hidden=64, experts=4, vocab_size=64, max_seq=16))


def mixtral_8x7b() -> Mixtral:
    return Mixtral(Config(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336))


def model() -> Mixtral:
    return mixtral_8x7b()


def inputs(batch_size: int, model: Mixtral) -> dict[str, Tensor]:
    shape = (batch_size, model.config.max_seq)
    return {
        "tokens": torch.randint(model.config.vocab_size, shape),
        "labels": torch.randint(model.config.vocab_size, shape),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def weight(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())
