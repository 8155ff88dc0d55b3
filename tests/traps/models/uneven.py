"""Trap 3: dims that the ranks do not divide."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEADS, HEAD = 6, 4
WIDTH = HEADS * HEAD


class Attention(nn.Module):
    """Six heads of four, so that 4 ranks divide the projections and not the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, HEADS, HEAD).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.wo(y.transpose(1, 2).reshape(b, s, WIDTH))


class Fives(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, 5)
        self.column, self.row = nn.Linear(5, 5), nn.Linear(5, 5)
        self.exit = nn.Linear(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(self.row(F.relu(self.column(self.entry(x)))))


class OnlyFives(nn.Module):
    """Nothing that any even degree divides, not even the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.column, self.row = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.row(F.relu(self.column(x[..., :5]))), (0, WIDTH - 5))


def model() -> nn.Module:
    return Attention()


def fives() -> nn.Module:
    return Fives()


def only_fives() -> nn.Module:
    return OnlyFives()


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, 3, WIDTH), "target": torch.randn(batch_size, 3, WIDTH)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
