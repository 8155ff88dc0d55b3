"""Operators that are kept whole: one entry forward, one backward, however many torch operators are behind them.

Recurrent layers (`lstm`, `gru`, `rnn`) would otherwise be thousands of small operators, one set per time step. Their matmuls are counted,

    2 g h (i + o) + 2 h p   FLOP per sample, step, layer and direction

with g gates, h hidden, i input, o output size, and p the projection's output (0 without); backward counts twice that. What autograd keeps
for backward is the input, the output and a reserve of the gates' and cells' values, as cuDNN keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planner.trace.record import Recorder

_GATES = {nn.LSTM: ("lstm", 4, 5), nn.GRU: ("gru", 3, 4), nn.RNN: ("rnn", 1, 1)}
"""Target, gates, and values kept per hidden unit and step: LSTM its gates and cell, GRU its gates and the candidate's recurrent part."""


@dataclass(frozen=True, slots=True)
class Like:
    """An output to make."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Whole:
    """An operator kept whole: what it is called, how it appears in the graph, what it makes, what forward costs.

    `kept` are positions among its outputs that autograd keeps; its tensor inputs are kept always.
    """

    target: str
    args: tuple[Any, ...]
    outputs: tuple[Like, ...]
    kept: tuple[int, ...]
    flop: int
    modelled: bool = True


def run_whole(recorder: Recorder, whole: Whole, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Record `whole` as one operator on `tensors`; its outputs are fake tensors through which gradients flow."""
    if not whole.modelled:
        recorder.record.count_unmodelled(whole.target)
        recorder.record.count_unmodelled(f"{whole.target}_backward")
    made = _Run.apply(recorder, whole, *tensors)
    return tuple(made)


class _Run(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(ctx: Any, recorder: Recorder, whole: Whole, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.recorder, ctx.whole, ctx.tensors = recorder, whole, tensors
        ctx.set_materialize_grads(False)
        recorder.paused = True
        made = tuple(torch.empty(like.shape, dtype=like.dtype, device="cpu") for like in whole.outputs)
        recorder.paused = False
        recorder.add_whole(whole.target, tensors=tensors, outputs=made, args=whole.args, flop=whole.flop)
        ctx.kept = (*tensors, *(made[index] for index in whole.kept))
        recorder.keep(ctx.kept)
        ctx.mark_non_differentiable(*[tensor for tensor in made if not tensor.is_floating_point()])
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        recorder, whole = ctx.recorder, ctx.whole
        arriving = [grad for grad in grads if grad is not None]
        needed = [index for index, tensor in enumerate(ctx.tensors) if ctx.needs_input_grad[index + 2]]
        recorder.paused = True
        made = {index: torch.empty_like(ctx.tensors[index], memory_format=torch.contiguous_format) for index in needed}
        recorder.paused = False
        target = f"{whole.target}_backward"
        recorder.add_whole(target, tensors=(*arriving, *ctx.kept), outputs=tuple(made.values()), args=whole.args, flop=2 * whole.flop)
        return (None, None, *(made.get(index) for index in range(len(ctx.tensors))))


def recurrent(module: nn.Module, recorder: Recorder) -> Callable[..., Any] | None:
    """A `forward` that records a recurrent layer whole; None for any other module."""
    if type(module) not in _GATES:
        return None
    original = module.forward

    def forward(x: Any, hx: Any = None) -> Any:
        if recorder.paused or not isinstance(x, torch.Tensor):
            return original(x, hx)
        states = () if hx is None else tuple(hx) if isinstance(hx, tuple) else (hx,)
        weights = [getattr(module, name) for name in module._flat_weights_names]
        made = run_whole(recorder, _recurrent_whole(module, x), (x, *states, *weights))
        return made[0], made[1:-1] if isinstance(module, nn.LSTM) else made[1]

    return forward


def _recurrent_whole(module: Any, x: torch.Tensor) -> Whole:
    target, gates, reserve = _GATES[type(module)]
    batch = () if x.dim() == 2 else (x.shape[0 if module.batch_first else 1],)
    steps = x.shape[1 if module.batch_first and batch else 0]
    directions = 2 if module.bidirectional else 1
    hidden, layers = module.hidden_size, module.num_layers
    out = module.proj_size or hidden
    sequence = (*batch, steps) if module.batch_first else (steps, *batch)
    states = [(layers * directions, *batch, out)] + ([(layers * directions, *batch, hidden)] if target == "lstm" else [])
    shapes = [(*sequence, directions * out), *states, (layers * directions, steps, *batch, reserve * hidden)]
    per_step = sum(
        2 * gates * hidden * (size + out) + 2 * hidden * module.proj_size
        for size in (module.input_size, *[directions * out] * (layers - 1))
    )  # fmt: skip
    samples = batch[0] if batch else 1
    return Whole(
        target=target,
        args=(hidden, layers, bool(module.batch_first), bool(module.bidirectional), float(module.dropout)),
        outputs=tuple(Like(shape, x.dtype) for shape in shapes),
        kept=(0, len(shapes) - 1),
        flop=directions * steps * samples * per_step,
    )
