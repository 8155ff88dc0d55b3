"""ResNet-50 and its wide variants (He et al. 2015, table 1; Zagoruyko and Komodakis 2016), with the stride on the 3x3 convolution.

Batch normalisation uses the statistics of one microbatch on one rank, so the split of the batch changes the result a little.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    channels: int = 64
    widening: int = 1
    image: int = 224
    classes: int = 1000


class Shortcut(nn.Module):
    """Brings the residual to the block's output shape."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 1, stride=stride, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.shortcut = Shortcut(channels, out, stride) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class Stem(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.norm(self.conv(images))), 3, stride=2, padding=1)


class Stage(nn.Module):
    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        base = config.channels * 2**index
        inner, out = base * config.widening, base * 4
        channels = config.channels if index == 0 else out // 2
        stride = 1 if index == 0 else 2
        rest = config.blocks[index] - 1
        self.layers = nn.ModuleList([Bottleneck(channels, inner, out, stride), *(Bottleneck(out, inner, out, 1) for _ in range(rest))])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ResNet(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config.channels)
        self.stages = nn.ModuleList(Stage(config, index) for index in range(len(config.blocks)))
        self.head = nn.Linear(config.channels * 4 * 2 ** (len(config.blocks) - 1), config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


def tiny() -> ResNet:
    return ResNet(Config(blocks=(2, 2), channels=8, image=32, classes=16))


def resnet50() -> ResNet:
    return ResNet(Config())


def wide_resnet(widening: int = 2) -> ResNet:
    """WRN-50-2 as it stands; 4 gives 223 million parameters."""
    return ResNet(Config(widening=widening))


def model() -> ResNet:
    return resnet50()


def inputs(batch_size: int, model: ResNet) -> dict[str, Tensor]:
    config = model.config
    return {
        "images": torch.randn(batch_size, 3, config.image, config.image),
        "labels": torch.randint(config.classes, (batch_size,)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output, batch["labels"])
