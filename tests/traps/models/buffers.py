"""Trap 8: rotary frequencies, positions and a mask in buffers that no state dict holds."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, LENGTH = 8, 6


class Rotary(nn.Module):
    """Frequencies in a buffer outside the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.empty(WIDTH // 2), persistent=False)
        self.register_buffer("positions", torch.empty(LENGTH, dtype=torch.int64), persistent=False)
        self.register_buffer("visible", torch.empty(LENGTH, LENGTH, dtype=torch.bool), persistent=False)
        self.init_buffers()

    def init_buffers(self) -> None:
        self.inv_freq.copy_(10000.0 ** -(torch.arange(WIDTH // 2) / (WIDTH // 2)))
        self.positions.copy_(torch.arange(LENGTH))
        self.visible.copy_(torch.ones(LENGTH, LENGTH).tril())

    def forward(self, x: Tensor) -> Tensor:
        angle = self.positions[:, None] * self.inv_freq.to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1)
        return self.visible.to(x.dtype) @ turned


class Turning(nn.Module):
    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.rotary = rotary
        self.exit = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(self.rotary(self.entry(x)))


class Forgetful(nn.Module):
    """Makes its buffers in __init__ only, as many published models do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(WIDTH // 2) / (WIDTH // 2)), persistent=False)
        self.register_buffer("positions", torch.arange(LENGTH), persistent=False)
        self.register_buffer("visible", torch.ones(LENGTH, LENGTH).tril().bool(), persistent=False)

    forward = Rotary.forward


def model() -> nn.Module:
    return Turning(Rotary())


def forgetful() -> nn.Module:
    return Turning(Forgetful())


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, LENGTH, WIDTH), "target": torch.randn(batch_size, LENGTH, WIDTH)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
