"""Trap 10: c(b(a(x))) + a(x) over the cuts, with a complex table and an integer activation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.linear(x).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * table).flatten(-2)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.register_buffer("table", torch.polar(torch.ones(WIDTH // 2), torch.arange(WIDTH // 2) * 0.3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.layers[0](x, self.table)
        top = first.detach().argmax(-1)
        for layer in self.layers[1:]:
            y = layer(y, self.table)
        return y + first + F.one_hot(top, WIDTH)


def model() -> nn.Module:
    return Skip()


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, 3, WIDTH), "target": torch.randn(batch_size, 3, WIDTH)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
