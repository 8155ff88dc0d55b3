"""The model as `torch.export` sees it, on meta tensors: nothing is computed, no parameter is copied.

A plan names the tensors of one microbatch, so that a rank can export before it has seen a batch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from planner.errors import ModelError
from planner.ir.batch import InputInfo, forward_arguments

SUGGESTION = "plan with --mesh pp=1"


def cannot_cut(reason: str) -> ModelError:
    """The error of a model for which pipeline stages are illegal."""
    return ModelError(f"the model cannot be cut into pipeline stages: {reason}; {SUGGESTION}")


def export(model: nn.Module, batch: Any, *, whole: Sequence[str], compute_dtype: torch.dtype | None = None) -> ExportedProgram:
    """The forward of `model` for a microbatch `batch` on the meta device, with the signatures of the calls of modules `whole`.

    Floating parameters count as `compute_dtype` where that is given. Raises ModelError with the reason if the model cannot be exported.
    """
    shadow = on_meta(model, compute_dtype)
    args, kwargs = forward_arguments(model.forward, batch)
    try:
        with warnings.catch_warnings():
            # nn.LSTM keeps its weights in a list too, which export reports; the stage runs the module itself
            warnings.filterwarnings("ignore", message="The tensor attribute", category=UserWarning)
            return torch.export.export(shadow, args, kwargs, strict=False, preserve_module_call_signature=tuple(whole))
    except Exception as error:  # whatever the user's forward or export's passes raise
        raise cannot_cut(f"torch.export failed with {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The type and the first line of an error's text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def example(inputs: Sequence[InputInfo]) -> Any:
    """The microbatch that a plan describes, on the meta device: dicts and tuples nested as the paths say."""
    tree: dict[Any, Any] = {}
    for info in inputs:
        node = tree
        for key in info.path[:-1]:
            node = node.setdefault(key, {})
        node[info.path[-1]] = torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="meta")
    return as_sequences(tree)


def as_sequences(tree: Any) -> Any:
    """`tree` with every dict whose keys are numbers made a tuple; a number that is missing was not a tensor and becomes None."""
    if not isinstance(tree, dict):
        return tree
    children = {key: as_sequences(value) for key, value in tree.items()}
    if not children or not all(isinstance(key, int) for key in children):
        return children
    return tuple(children.get(index) for index in range(max(children) + 1))


def on_meta(model: nn.Module, compute_dtype: torch.dtype | None) -> nn.Module:
    """A copy of `model` on the meta device with the same ties."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        dtype = compute_dtype if compute_dtype is not None and parameter.is_floating_point() else parameter.dtype
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, dtype=dtype, device="meta"), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def frames(begins: Sequence[str]) -> frozenset[str]:
    """The modules that are cut: the root and everything around the modules that stages begin at."""
    return frozenset({"", *(ancestor for begin in begins for ancestor in ancestors(begin))})


def ancestors(fqn: str) -> Iterator[str]:
    """The FQNs of the modules around `fqn`, outermost first, without the root."""
    parts = fqn.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def blocks(model: nn.Module, cut: Set[str]) -> Iterator[str]:
    """The modules directly inside the modules `cut`, which stay whole; containers without a forward are looked through."""
    waiting = [("", model)]
    while waiting:
        parent, module = waiting.pop()
        for name, child in module.named_children():
            fqn = f"{parent}.{name}" if parent else name
            if fqn in cut or isinstance(child, nn.ModuleList | nn.ModuleDict) or type(child).forward is nn.Module.forward:
                waiting.append((fqn, child))
            else:
                yield fqn
