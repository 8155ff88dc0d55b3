"""Hooks that keep the stack of running modules, place borders, and give repeated blocks over to the folder.

A border is a new name, not a new tensor: nothing changes for autograd or for in-place operators. Inside a module its floating inputs carry
the name behind the input border and, when the module returns, their old name again, because at run time a pre-forward hook changes only
what this module sees. A module's output carries the name behind the output border from then on. A tensor that a module returns unchanged
has no output border.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.trace.coarse import Opaque, opaque
from planner.trace.fold import Folder, skippable
from planner.trace.record import Recorder
from planner.trace.watch import watched
from planner.trace.whole import recurrent


@dataclass(slots=True)
class _Call:
    """A running module: floating inputs with their name outside and inside, and how to end the watch on a first copy."""

    skipped: bool
    inputs: dict[int, tuple[torch.Tensor, str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Tracker:
    """Counts calls and holds the stack while a step is recorded."""

    recorder: Recorder
    folder: Folder
    calls: Counter[str] = field(default_factory=Counter)
    stack: list[_Call] = field(default_factory=list)

    def before(self, fqn: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Pre-forward hook."""
        if self.recorder.paused or self.recorder.in_backward:
            return
        self.recorder.modules.append(fqn)
        self.calls[fqn] += 1
        call = _Call(self.folder.enter(fqn, args, kwargs))
        self.stack.append(call)
        if call.skipped:
            return
        for path, leaf in [*_floating(args), *_floating(kwargs)]:
            if id(leaf) not in call.inputs:
                outside = self.recorder.names.of(leaf)
                inside = self.recorder.add_border(leaf, f"{fqn}:input{path}", module=fqn)
                self.recorder.names.bind(leaf, inside)
                call.inputs[id(leaf)] = (leaf, outside, inside)
        self.folder.entered()

    def after(self, fqn: str, output: Any) -> None:
        """Post-forward hook."""
        if self.recorder.paused or self.recorder.in_backward:
            return
        call = self.stack.pop()
        names = self.recorder.names
        for leaf, outside, inside in call.inputs.values():
            if names.of(leaf) == inside:  # else it was written in place meanwhile, and the new value is everybody's
                names.bind(leaf, outside)
        if not call.skipped:
            for path, leaf in _floating(output):
                if id(leaf) not in call.inputs:
                    names.bind(leaf, self.recorder.add_border(leaf, f"{fqn}:output{path}", module=fqn))
            self.folder.leave(fqn, output)
        self.recorder.modules.pop()


@contextmanager
def tracked(model: nn.Module, tracker: Tracker, *, kept: Mapping[str, Opaque]) -> Iterator[None]:
    """Hooks on every module for the time of a recording; recurrent layers and the modules in `kept` become one operator each."""
    handles = []
    replaced = []
    for fqn, module in model.named_modules():
        handles += _hooks(module, fqn=fqn, tracker=tracker)
        whole = opaque(module, kept[fqn], tracker.recorder) if fqn in kept else recurrent(module, tracker.recorder)
        if whole is not None:
            module.forward = whole
        if fqn in tracker.folder.run_of:
            module.forward = skippable(module, tracker.folder)
        if "forward" in vars(module):
            replaced.append(module)
    try:
        with watched(model, tracker.folder):
            yield
    finally:
        for handle in handles:
            handle.remove()
        for module in replaced:
            del module.forward


def _hooks(module: nn.Module, *, fqn: str, tracker: Tracker) -> list[Any]:
    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tracker.before(fqn, args, kwargs)

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        tracker.after(fqn, output)

    return [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]


def _floating(tree: Any) -> list[tuple[str, torch.Tensor]]:
    """(pytree path, tensor) of the floating tensors; the path of a lone tensor is empty."""
    if isinstance(tree, torch.Tensor):
        return [("", tree)] if tree.is_floating_point() else []
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [(pytree.keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
