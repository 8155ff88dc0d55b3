"""Trap 2: fewer KV heads than ranks, behind a reshape that leaves their number to be inferred."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16


class Grouped(nn.Module):
    """Grouped-query attention; the reshape into heads raises under DTensor where 2 KV heads meet 4 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.wk = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.wv = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.wo = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q = self.wq(x).view(b, s, -1, HEAD).transpose(1, 2)
        k, v = (self.repeated(y.view(b, s, -1, HEAD)).transpose(1, 2) for y in (self.wk(x), self.wv(x)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, HEADS * HEAD))

    def repeated(self, y: Tensor) -> Tensor:
        b, s, heads, size = y.shape
        return y[:, :, :, None].expand(b, s, heads, HEADS // heads, size).reshape(b, s, HEADS, size)


class Pooled(nn.Module):
    """Attention to heads as if they were tokens; the reshape loses half the sequence under DTensor, without an error."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, HEAD)
        self.wk = nn.Linear(WIDTH, KV_HEADS * HEAD)
        self.wv = nn.Linear(WIDTH, KV_HEADS * HEAD)
        self.wo = nn.Linear(HEAD, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        k, v = self.wk(x).view(b, -1, HEAD), self.wv(x).view(b, -1, HEAD)
        scores = (self.wq(x) @ k.transpose(1, 2)).softmax(-1)
        return self.wo(scores @ v)


def model() -> nn.Module:
    return Grouped()


def pooled() -> nn.Module:
    return Pooled()


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, 6, WIDTH), "target": torch.randn(batch_size, 6, WIDTH)}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(output, batch["target"])
