"""Repeated blocks are recorded once: the first copy runs, later ones hand on fake outputs like the first one's.

A call may be left out if it is exact to do so. Checked at each call of copy k of a run (planner.trace.blocks), against the first copy:

    its arguments have the same structure, shapes, dtypes, requires_grad and plain values;
    each tensor argument is an output of copy k-1, at the same place for all k, or the very tensor the first copy read;
    at least one is handed on that way (a list of parallel experts is not a chain).

A copy that fails the check is recorded and becomes the first copy of what follows. Three things can only be seen later; they put the run
on the list `refused`, and the step is recorded again without folding it:

    a copy's own number was read, or a tensor made outside reached a block other than through its arguments;
    an output of a copy other than the last was read by something else than the next copy;
    something inside the first copy was read from outside.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.trace.blocks import Run
from planner.trace.record import Recorder


@dataclass(slots=True)
class Chain:
    """A first copy and the calls folded into it.

    `raw` are the names of the tensor arguments before their input borders and `read` after them; `written` the outputs.
    `carried` maps positions among the arguments to positions among the outputs. `start` and `end` bound the ops in the record.
    `latest` are the outputs of the newest copy, `arriving` the names of the gradients that reach the copies' outputs,
    `handed` those of gradients that copies left out give to tensors all of them read.
    """

    run: Run
    copies: list[str]
    spec: object
    arguments: list[Any]
    raw: dict[int, str]
    start: int
    read: dict[int, str] = field(default_factory=dict)
    end: int = 0
    output_spec: Any = None
    outputs: list[Any] = field(default_factory=list)
    output_grads: list[bool] = field(default_factory=list)
    written: dict[int, str] = field(default_factory=dict)
    carried: dict[int, int] = field(default_factory=dict)
    latest: list[Any] = field(default_factory=list)
    arriving: set[str] = field(default_factory=set)
    handed: set[str] = field(default_factory=set)


class Folder:
    """Decides, call by call, which copies run. One per recording."""

    def __init__(self, recorder: Recorder, *, runs: tuple[Run, ...], refused: frozenset[str]) -> None:
        self.recorder = recorder
        self.run_of = {fqn: run for run in runs if run.prefix not in refused for fqn in run.fqns}
        self.chains: list[Chain] = []
        self.number_reads: set[str] = set()
        self.running: Chain | None = None
        self.skipping: Chain | None = None

    def enter(self, fqn: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Called before a block and its borders; true if the call is left out."""
        run = self.run_of.get(fqn)
        if run is None or self.running is not None:
            return False
        leaves, spec = pytree.tree_flatten((args, kwargs))
        chain = next((chain for chain in reversed(self.chains) if chain.run is run), None)
        if chain is not None and self._continues(chain, leaves, spec):
            chain.copies.append(fqn)
            self.skipping = chain
            return True
        raw = {index: self.recorder.names.of(leaf) for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        self.running = Chain(run, [fqn], spec, leaves, raw, len(self.recorder.record.forward))
        return False

    def entered(self) -> None:
        """Called when the input borders of a first copy stand."""
        if self.running is not None and not self.running.read:
            names = self.recorder.names
            self.running.read = {index: names.of(self.running.arguments[index]) for index in self.running.raw}

    def leave(self, fqn: str, output: Any) -> None:
        """Called after a first copy and its output borders."""
        chain = self.running
        if chain is None or chain.copies[0] != fqn:
            return
        chain.outputs, chain.output_spec = pytree.tree_flatten(output)
        chain.output_grads = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in chain.outputs]
        chain.written = {i: self.recorder.names.of(leaf) for i, leaf in enumerate(chain.outputs) if isinstance(leaf, torch.Tensor)}
        chain.end = len(self.recorder.record.forward)
        chain.latest = chain.outputs
        self.chains.append(chain)
        self.running = None

    def skip(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The outputs of a call that is left out."""
        chain = self.skipping
        assert chain is not None
        leaves, _ = pytree.tree_flatten((args, kwargs))
        own = {id(leaf): index for index, leaf in enumerate(chain.arguments) if isinstance(leaf, torch.Tensor)}
        fresh = [i for i, leaf in enumerate(chain.outputs) if isinstance(leaf, torch.Tensor) and id(leaf) not in own]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.recorder.paused = True
        made = _Skip.apply(self, chain, fresh, *tensors) if fresh else ()
        self.recorder.paused = False
        outputs = [leaves[own[id(leaf)]] if id(leaf) in own else leaf for leaf in chain.outputs]
        for index, tensor in zip(fresh, made, strict=True):
            outputs[index] = tensor
            self.recorder.names.bind(tensor, chain.written[index])
        passed = {id(leaf) for leaf in outputs}
        behind = [leaf for leaf in chain.latest if isinstance(leaf, torch.Tensor) and id(leaf) not in passed]
        self.recorder.names.stale.update({id(leaf): chain.run.prefix for leaf in behind})
        self.recorder.forget_nodes()
        chain.latest = outputs
        self.skipping = None
        return pytree.tree_unflatten(outputs, chain.output_spec)

    def _continues(self, chain: Chain, leaves: list[Any], spec: object) -> bool:
        if spec != chain.spec or len(leaves) != len(chain.arguments):
            return False
        if not all(_alike(a, b) for a, b in zip(chain.arguments, leaves, strict=True)):
            return False
        latest = {id(leaf): index for index, leaf in enumerate(chain.latest) if isinstance(leaf, torch.Tensor)}
        carried: dict[int, int] = {}
        for index, name in chain.raw.items():
            leaf = leaves[index]
            if id(leaf) in latest and leaf is not chain.arguments[index]:
                carried[index] = latest[id(leaf)]
            elif self.recorder.names.of(leaf) != name or id(leaf) in self.recorder.names.stale:
                return False
        if not carried or (len(chain.copies) > 1 and carried != chain.carried):
            return False
        chain.carried = carried
        return True


class _Skip(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Stands for one copy: outputs and gradients with the right shapes and no operators behind them."""

    @staticmethod
    def forward(ctx: Any, folder: Folder, chain: Chain, fresh: list[int], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.folder, ctx.chain, ctx.fresh, ctx.tensors = folder, chain, fresh, tensors
        ctx.set_materialize_grads(False)
        models = [chain.outputs[index] for index in fresh]
        made = tuple(torch.empty_strided(model.shape, model.stride(), dtype=model.dtype, device=model.device) for model in models)
        ctx.mark_non_differentiable(*[tensor for tensor, index in zip(made, fresh, strict=True) if not chain.output_grads[index]])
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        recorder, chain = ctx.folder.recorder, ctx.chain
        arriving = dict(zip(ctx.fresh, grads, strict=True))
        chain.arriving.update(recorder.names.of(grad) for grad in grads if grad is not None)
        recorder.paused = True
        made: list[torch.Tensor | None] = []
        for index, tensor in zip(chain.raw, ctx.tensors, strict=True):
            if not tensor.requires_grad or all(grad is None for grad in grads):
                made.append(None)
                continue
            source = arriving.get(chain.carried.get(index, -1))
            grad = _gradient(tensor, source)
            if source is None:
                name = recorder.fresh_name("copies")
                chain.handed.add(name)
                recorder.bind(grad, name)
            else:
                recorder.names.bind(grad, recorder.names.of(source))
            made.append(grad)
        recorder.paused = False
        return (None, None, None, *made)


def _gradient(tensor: torch.Tensor, source: torch.Tensor | None) -> torch.Tensor:
    """The gradient of `tensor`. On a residual stream it keeps the strides that the gradient arriving at the block's output had."""
    dense = source is not None and source.shape == tensor.shape and source.is_contiguous() is False and 0 not in source.stride()
    stride = source.stride() if dense and source is not None else torch.empty(tensor.shape, device="meta").stride()
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)


def _alike(a: Any, b: Any) -> bool:
    """Equal for the recording: tensors by their description, other values by equality."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (a.shape, a.dtype, a.requires_grad, a.stride()) == (b.shape, b.dtype, b.requires_grad, b.stride())
    return type(a) is type(b) and (a is b or (isinstance(a, int | float | str | bool | torch.dtype | torch.device) and a == b))


def skippable(module: nn.Module, folder: Folder) -> Callable[..., Any]:
    """A `forward` for `module` that leaves the call out where the folder said so."""
    original = module.forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if folder.skipping is not None:
            return folder.skip(args, kwargs)
        return original(*args, **kwargs)

    return types.MethodType(forward, module)
