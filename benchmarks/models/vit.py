"""Vision Transformer: patches by a strided convolution, a class token, pre-norm blocks (Dosovitskiy et al. 2020, table 1)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    image: int = 224
    patch: int = 16
    classes: int = 1000

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


class Patches(nn.Module):
    """Images [b, 3, image, image] to tokens [b, patches, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, config.width, config.patch, stride=config.patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).flatten(2).transpose(1, 2)


class Tokens(nn.Module):
    """Puts the class token in front and adds the learned positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.empty(1, 1, config.width))
        self.position = nn.Parameter(torch.empty(1, config.patches + 1, config.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.cls, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.cls.expand(x.shape[0], 1, x.shape[2]), x), dim=1) + self.position


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
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = MLP(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class ViT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.patches = Patches(config)
        self.tokens = Tokens(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.tokens(self.patches(images))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def tiny(layers: int = 4) -> ViT:
    return ViT(Config(layers=layers, width=32, heads=4, image=16, patch=4, classes=16))


def vit_b16() -> ViT:
    return ViT(Config(layers=12, width=768, heads=12))


def model() -> ViT:
    return vit_b16()


def inputs(batch_size: int, model: ViT) -> dict[str, Tensor]:
    config = model.config
    return {
        "images": torch.randn(batch_size, 3, config.image, config.image),
        "labels": torch.randint(config.classes, (batch_size,)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output, batch["labels"])
