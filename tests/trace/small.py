"""Small models for the recorder's tests, each with one property."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from planner.trace.source import ModelSource

WIDTH = 8


def source(build, *, inputs=None, loss=None):
    """A model of [batch, 3, WIDTH] floating inputs whose loss is the mean of its output."""
    return ModelSource(
        name="small.py",
        model=build,
        inputs=inputs or (lambda batch_size: (torch.randn(batch_size, 3, WIDTH),)),
        loss=loss or (lambda output, batch: output.mean()),
        weight=lambda batch: 1.0,
    )


def total_flop(graph):
    return sum(op.flop * graph.multiplicity(op) for op in (*graph.ops, *graph.backward))


def op_counts(graph):
    """How often each operator runs, folded blocks counted with their copies."""
    counts = {}
    for kind, ops in (("forward", graph.ops), ("backward", graph.backward)):
        for op in ops:
            counts[kind, op.target] = counts.get((kind, op.target), 0) + graph.multiplicity(op)
    return counts


def parameter_count(graph):
    return sum(parameter.numel * graph.copies_of(parameter) for parameter in graph.parameters)


def borders(graph):
    return [op.border for op in graph.ops if op.target == "border"]


def without_names(graph):
    """The graph without warnings, for comparison of recordings."""
    return replace(graph, warnings=())


class Block(nn.Module):
    """A residual perceptron with a norm; `number` is stored and not read."""

    def __init__(self, number=0, *, width=WIDTH, hidden=16):
        super().__init__()
        self.number = number
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """An entry, numbered blocks in a row, an exit."""

    def __init__(self, blocks):
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.entry(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
