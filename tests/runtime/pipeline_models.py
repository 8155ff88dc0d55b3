"""Small models that are hard to cut: skips over two stages, keyword-only arguments, nested outputs with None, complex and integer values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)

    def forward(self, x: Tensor, *, table: Tensor, keep: Tensor | None = None) -> dict[str, Tensor | tuple[Tensor, None]]:
        pairs = torch.view_as_complex(self.norm(x).unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * table).flatten(-2)
        y = self.up(turned) if keep is None else self.up(turned) * keep
        return {"x": x + y, "aux": (y.square().mean(), None)}


class Skipping(nn.Module):
    """c(b(a(x))) + a(x) + counts, with a complex table, an integer tensor made by stage 0 and read on stage 2, and an unused extra."""

    def __init__(self, width: int = 8, vocab_size: int = 11) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.bias = nn.Parameter(torch.linspace(-1, 1, width))
        self.a, self.b, self.c = Layer(width), Layer(width), Layer(width)
        self.head = nn.Linear(width, vocab_size)
        self.register_buffer("table", torch.polar(torch.ones(width // 2), torch.arange(width // 2) * 0.3), persistent=False)

    def forward(self, *, tokens: Tensor, scale: Tensor | None = None, mask: Tensor) -> dict[str, object]:
        keep = mask[..., None].to(self.bias.dtype)
        table = self.table * torch.tensor(1.0)
        a = self.a(self.embedding(tokens) + self.bias, table=table, keep=keep)
        top = a["x"].detach().argmax(-1)
        b = self.b(a["x"], table=table)
        with torch.no_grad():
            still = b["x"] * 0.5
        c = self.c(b["x"] + still, table=table, keep=keep)
        aux = a["aux"][0] + b["aux"][0] + c["aux"][0]
        x = c["x"] + a["x"] + F.one_hot(top, a["x"].shape[-1])
        return {"logits": self.head(x) if scale is None else self.head(x) * scale, "past": None, "hid": (x, aux)}


def inputs(batch_size: int, model: Skipping) -> dict[str, Tensor]:
    shape = (batch_size, 6)
    return {
        "tokens": torch.randint(model.embedding.num_embeddings, shape),
        "mask": torch.rand(shape) > 0.3,
        "labels": torch.randint(model.embedding.num_embeddings, shape),
    }


def loss(output: dict[str, object], batch: dict[str, Tensor]) -> Tensor:
    assert output["past"] is None
    _, aux = output["hid"]  # type: ignore[misc]
    return F.cross_entropy(output["logits"].flatten(0, 1), batch["labels"].flatten()) + aux  # type: ignore[attr-defined, no-any-return]


class Listed(nn.Module):
    """Positional arguments, a block called twice, an in-place operator on a value that crosses the cut, one tuple output."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inp = nn.Linear(width, width)
        self.twice = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        self.steps.add_(1)
        y = self.twice(self.inp(x))
        y = self.out(y.relu_() if y.requires_grad else y.relu())
        return self.twice(y + shift), y
