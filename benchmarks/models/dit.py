"""DiT: a diffusion transformer on latent patches, conditioned by adaptive layer norms (Peebles and Xie 2022, table 1).

The loss is the squared error of the predicted noise; the term for the learned variance is left out. Weights start at random, not at zero, so
that every parameter has a gradient from the first step.
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
    patch: int = 2
    latent: int = 32
    channels: int = 4
    classes: int = 1000
    frequencies: int = 128
    steps: int = 1000

    @property
    def side(self) -> int:
        """Patches along one side of the latent."""
        return self.latent // self.patch


def waves(position: Tensor, count: int) -> Tensor:
    """Cosines and sines of `position` [n] at `count` frequencies from 1 down to 1/10000, [n, 2 * count]."""
    frequency = 10000 ** (-torch.arange(count, device=position.device, dtype=torch.float64) / count)
    angle = torch.outer(position.double(), frequency)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class Patches(nn.Module):
    """Latents [b, channels, latent, latent] to tokens [b, patches, width], with fixed positions added."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.conv = nn.Conv2d(config.channels, config.width, config.patch, stride=config.patch)
        self.register_buffer("position", torch.empty(config.side**2, config.width), persistent=False)
        self.init_buffers()

    def init_buffers(self) -> None:
        side, count = self.config.side, self.config.width // 4
        index = torch.arange(side**2, device=self.position.device)
        self.position.copy_(torch.cat((waves(index // side, count), waves(index % side, count)), dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).flatten(2).transpose(1, 2)
        return x + self.position.to(x.dtype)


class Condition(nn.Module):
    """Time step and class label of each sample as one vector, [b, width]; class number `classes` stands for "no label"."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.time_up = nn.Linear(2 * config.frequencies, config.width)
        self.time_down = nn.Linear(config.width, config.width)
        self.label = nn.Embedding(config.classes + 1, config.width)

    def forward(self, time: Tensor, label: Tensor) -> Tensor:
        wave = waves(time, self.config.frequencies).to(self.time_up.weight.dtype)
        return self.time_down(F.silu(self.time_up(wave))) + self.label(label)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
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
        y = F.scaled_dot_product_attention(q, k, v)
        return self.wo(y.transpose(1, 2).reshape(b, s, width))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class AdaptiveNorm(nn.Module):
    """Layer norm of x [b, s, width], scaled and shifted by vectors [b, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.modulation = nn.Linear(config.width, 6 * config.width)
        self.attention_norm = AdaptiveNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = AdaptiveNorm(config.width)
        self.mlp = MLP(config.width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(F.silu(condition)).chunk(6, dim=-1)
        x = x + gate_a.unsqueeze(1) * self.attention(self.attention_norm(x, shift_a, scale_a))
        return x + gate_m.unsqueeze(1) * self.mlp(self.mlp_norm(x, shift_m, scale_m))


class Head(nn.Module):
    """Tokens back to latents: noise and variance, [b, 2 * channels, latent, latent]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.modulation = nn.Linear(config.width, 2 * config.width)
        self.norm = AdaptiveNorm(config.width)
        self.linear = nn.Linear(config.width, config.patch**2 * 2 * config.channels)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.modulation(F.silu(condition)).chunk(2, dim=-1)
        x = self.linear(self.norm(x, shift, scale))
        side, patch, channels = self.config.side, self.config.patch, 2 * self.config.channels
        x = x.view(x.shape[0], side, side, patch, patch, channels).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(x.shape[0], channels, self.config.latent, self.config.latent)


class DiT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.patches = Patches(config)
        self.condition = Condition(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        condition = self.condition(time, label)
        x = self.patches(x)
        for layer in self.layers:
            x = layer(x, condition)
        return self.head(x, condition)


def tiny(layers: int = 4) -> DiT:
    return DiT(Config(layers=layers, width=32, heads=4, latent=8, classes=16, frequencies=8))


def dit_xl() -> DiT:
    return DiT(Config(layers=28, width=1152, heads=16))


def model() -> DiT:
    return dit_xl()


def inputs(batch_size: int, model: DiT) -> dict[str, Tensor]:
    config = model.config
    shape = (batch_size, config.channels, config.latent, config.latent)
    return {
        "x": torch.randn(shape),
        "time": torch.randint(config.steps, (batch_size,)),
        "label": torch.randint(config.classes, (batch_size,)),
        "noise": torch.randn(shape),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    noise = batch["noise"]
    return F.mse_loss(output[:, : noise.shape[1]], noise)
