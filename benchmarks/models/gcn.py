"""Graph convolution on a batch of graphs: x' = relu(A x W) with A = D^-1/2 (E + I) D^-1/2, dense (Kipf and Welling 2016, equation 2)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    features: int
    nodes: int
    classes: int


class GraphConvolution(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return torch.bmm(adjacency, self.linear(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = GraphConvolution(width, width)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return F.relu(self.convolution(x, adjacency))


class GCN(nn.Module):
    """Class scores of every node, [b, nodes, classes]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Linear(config.features, config.width)
        self.layers = nn.ModuleList(Block(config.width) for _ in range(config.layers))
        self.head = GraphConvolution(config.width, config.classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.relu(self.embedding(x))
        for layer in self.layers:
            x = layer(x, adjacency)
        return self.head(x, adjacency)


def tiny(layers: int = 3) -> GCN:
    return GCN(Config(layers=layers, width=16, features=8, nodes=16, classes=8))


def large() -> GCN:
    """0.27 billion parameters on graphs of 4,096 nodes."""
    return GCN(Config(layers=16, width=4096, features=512, nodes=4096, classes=64))


def model() -> GCN:
    return large()


def inputs(batch_size: int, model: GCN) -> dict[str, Tensor]:
    """Random undirected graphs with about 16 neighbours per node."""
    config = model.config
    nodes = config.nodes
    upper = (torch.rand(batch_size, nodes, nodes) < min(0.5, 16 / nodes)).float().triu(1)
    edges = upper + upper.transpose(1, 2) + torch.eye(nodes)
    scale = edges.sum(2).rsqrt()
    return {
        "x": torch.randn(batch_size, nodes, config.features),
        "adjacency": edges * scale.unsqueeze(1) * scale.unsqueeze(2),
        "labels": torch.randint(config.classes, (batch_size, nodes)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())
