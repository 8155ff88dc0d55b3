"""One pipeline stage as a module: the blocks of the model that it runs, under their own names, and the code between them.

`StageModule.forward` takes what the model's forward takes (every rank has the batch) and, as `received`, the tensors that the stage before
hands over. It returns what the stage after needs, or, on the last stage, what the model returns.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from planner.errors import ModelError
from planner.ir.batch import forward_arguments
from planner.runtime.initialisers import LENT


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that crosses a cut. `shape` is that of the whole tensor for one microbatch; `border` names the module border that it left
    by (empty if it was made between blocks), `reader` the one that it enters by."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    border: str
    reader: str


@dataclass(frozen=True, slots=True)
class Shared:
    """A parameter that several stages hold: its first name in the model, its names on this stage, the stages, lowest first, and the stage
    that initialises it: the one that has it by its first name."""

    canonical: str
    fqns: tuple[str, ...]
    stages: tuple[int, ...]
    source: int


@dataclass(frozen=True, slots=True)
class StagePart:
    """Stage `index` of `stages`, what it receives and sends, and the parameters that it shares with other stages. `sharing` lists every set of
    stages of the pipeline that share some parameter: the same on all of them."""

    module: StageModule
    index: int
    stages: int
    received: tuple[Value, ...]
    sent: tuple[Value, ...]
    shared: tuple[Shared, ...]
    sharing: tuple[tuple[int, ...], ...]

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1

    def owns(self, fqn: str) -> bool:
        """Whether this stage is the one that counts parameter `fqn`: the only one that holds it, or the first."""
        return all(fqn not in shared.fqns or shared.stages[0] == self.index for shared in self.shared)


@dataclass(frozen=True, slots=True)
class Program:
    """What a stage executes: placeholders of `graph` are the received tensors, then the batch leaves at the pytree paths `inputs`, then
    `constants`. `output` is the structure of the model's output on the last stage and None elsewhere; `signature` is that of the model."""

    graph: fx.Graph
    inputs: tuple[str, ...]
    constants: tuple[Tensor, ...]
    output: pytree.TreeSpec | None
    signature: inspect.Signature


class StageModule(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The part of a model that one stage runs; submodules and parameters have the names that they have in the model."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def forward(self, *args: Any, received: Sequence[Tensor] = (), **kwargs: Any) -> Any:
        """The model's output on the last stage, else the tuple of tensors for the next one.

        Raises ModelError if the batch lacks a tensor that the model was exported with.
        """
        leaves = {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path((args, kwargs))[0]}
        missing = [path for path in self.program.inputs if not isinstance(leaves.get(path), Tensor)]
        if missing:
            raise ModelError(
                f"the batch has no tensor at (args, kwargs){missing[0]}, which the model was exported with; it has {', '.join(leaves)}"
            )
        inputs = (leaves[path] for path in self.program.inputs)
        output = fx.Interpreter(self, graph=self.program.graph).run(*received, *inputs, *self.program.constants)
        return output if self.program.output is None else pytree.tree_unflatten(list(output), self.program.output)

    def arguments(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The part of a batch that the model's forward takes, as positional and keyword arguments."""

        def forward() -> None: ...

        forward.__signature__ = self.program.signature  # type: ignore[attr-defined]
        return forward_arguments(forward, batch)


def attach(root: nn.Module, fqn: str, value: nn.Module | nn.Parameter | Tensor, *, persistent: bool = True) -> None:
    """Hangs a module, parameter or buffer into `root` under `fqn`, with empty modules around it."""
    owner, _, name = fqn.rpartition(".")
    holder = root
    for part in owner.split(".") if owner else ():
        if part not in holder._modules:
            holder.add_module(part, nn.Module())
        holder = holder.get_submodule(part)
    if isinstance(value, nn.Module):
        holder.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        holder.register_parameter(name, value)
    else:
        holder.register_buffer(name, value, persistent=persistent)


def lend_initialisers(holder: nn.Module, original: nn.Module) -> None:
    """Gives a module that stands for a cut one that one's `reset_parameters` and `init_buffers`, for the tensors that the stage has.

    They, and initialisers of the whole model, run on a copy without submodules, in which the tensors of other stages are there for the
    moment, so that the random numbers drawn are those of the whole model.
    """
    own = dict(itertools.chain(original.named_parameters(recurse=False), original.named_buffers(recurse=False)))
    if not own:
        return
    blank = copy.copy(original)
    blank.__dict__ = {**original.__dict__, "_modules": {}, "_parameters": {}, "_buffers": {}, "_non_persistent_buffers_set": set()}
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in own.items()}

    def run(act: Callable[[nn.Module], Any]) -> None:
        held = dict(itertools.chain(holder.named_parameters(recurse=False), holder.named_buffers(recurse=False)))
        if not held:
            return
        device = next(iter(held.values())).device
        for name, shape in shapes.items():
            value = held[name].detach().clone() if name in held else torch.zeros_like(shape, device=device)
            blank.register_buffer(name, value)
        act(blank)
        for name, tensor in held.items():
            tensor.detach().copy_(blank._buffers[name])
        blank._buffers.clear()

    for method in ("reset_parameters", "init_buffers"):
        if hasattr(original, method):
            setattr(holder, method, functools.partial(run, operator.methodcaller(method)))
    setattr(holder, LENT, run)


def on_device(arguments: Any, device: torch.device) -> Any:
    """Arguments of an exported operator with the meta device replaced."""
    return pytree.tree_map(lambda item: device if isinstance(item, torch.device) and item.type == "meta" else item, arguments)


def persistence(model: nn.Module) -> Mapping[str, bool]:
    """For every buffer's FQN, whether the state dict has it."""
    found = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in module._buffers:
            found[f"{prefix}.{name}" if prefix else name] = name not in module._non_persistent_buffers_set
    return found
