"""The user's model file, loaded.

A model file defines `model() -> nn.Module` (or other factories: `model.py:llama_8b`) and `inputs(batch_size)`, a tuple of positional or a dict
of keyword arguments of `forward`, batch first. It may define

    inputs(batch_size, model)   where a batch depends on the factory; `model` is the built module, possibly on the meta device
    loss(output, batch)         the scalar mean; default: the output if it is a scalar, its entry "loss" if it has one, else the mean of
                                its first floating tensor
    weight(batch)               the number of contributing tokens or samples; default: the batch size

Loading runs the file. Its folder is appended to `sys.path` (never put first), so it may import its neighbours. A `config.json` is handed to
planner.trace.hf. Whatever is wrong with the file is one ModelError with the file and line.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from planner.errors import ModelError
from planner.trace.hf import hf_source
from planner.trace.source import ModelSource
from planner.trace.where import message_of, user_line

_RESERVED = ("inputs", "loss", "weight")
_SHADOWED = ("planner", "costmodels")


def load(target: str) -> ModelSource:
    """What `path/model.py`, `path/model.py:factory` or `path/config.json` provides.

    Raises ModelError, in one line, for everything that is wrong with the file.
    """
    head, colon, factory = target.rpartition(":")
    path, factory = (Path(head), factory) if colon and head.endswith(".py") else (Path(target), "model")
    if not path.is_file():
        raise ModelError(f"{path} does not exist; give a model.py, model.py:factory or a Hugging Face config.json")
    if path.suffix == ".json":
        return hf_source(str(path))
    if path.suffix != ".py":
        raise ModelError(f"{path} is neither a Python file nor a config.json")
    module = _module(path.resolve())
    build = _factory(module, path=path, name=factory)
    inputs = _function(module, "inputs", path=path)
    if inputs is None:
        raise ModelError(f"{path} defines no inputs(batch_size); add one that returns a tuple or a dict of forward's arguments")
    return ModelSource(
        name=f"{path.name}:{factory}" if colon else path.name,
        model=build,
        inputs=_inputs(inputs, build, path=path),
        loss=_function(module, "loss", path=path) or default_loss,
        weight=_function(module, "weight", path=path) or default_weight,
    )


def default_loss(output: Any, batch: Any) -> torch.Tensor:
    """The output if it is a scalar, its entry "loss" if it has one, else the mean of its first floating tensor."""
    entry = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(entry, torch.Tensor):
        return entry
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf if leaf.numel() == 1 else leaf.float().mean()
    raise ModelError("forward returned no floating tensor; define loss(output, batch) in the model file")


def default_weight(batch: Any) -> float:
    """The first dim of the batch's first tensor."""
    return next((float(leaf.shape[0]) for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), 1.0)


def _module(path: Path) -> ModuleType:
    folder = path.parent
    shadowed = [name for name in _SHADOWED if (folder / name).is_dir()]
    if shadowed:
        raise ModelError(f"{path.name} lies beside a folder {shadowed[0]!r}, which hides autopar's own; move the model file to another folder")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"autopar_model_{path.stem}", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the user's and may raise anything
        del sys.modules[spec.name]
        raise ModelError(f"{_at(error, path)}: {message_of(error)}") from None
    return module


def _factory(module: ModuleType, *, path: Path, name: str) -> Callable[[], nn.Module]:
    function = _function(module, name, path=path)
    if function is None:
        found = ", ".join(_factories(module)) or "none"
        what = "model()" if name == "model" else f"factory {name!r}"
        raise ModelError(f"{path} defines no {what}; factories it defines: {found} (choose one with {path.name}:NAME)")

    def build() -> nn.Module:
        try:
            built = function()
        except (Exception, SystemExit) as error:  # the function is the user's and may raise anything
            raise ModelError(f"{_at(error, path)}: {name}() failed: {message_of(error)}") from None
        if not isinstance(built, nn.Module):
            raise ModelError(f"{path.name}: {name}() returned {type(built).__name__}, not a torch.nn.Module")
        return built

    return build


def _factories(module: ModuleType) -> list[str]:
    found = []
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_") and name not in _RESERVED:
            required = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
            found += [] if required else [name]
    return found


def _function(module: ModuleType, name: str, *, path: Path) -> Callable[..., Any] | None:
    value = getattr(module, name, None)
    if isinstance(value, nn.Module):
        raise ModelError(f"{path.name}: {name} is a module, not a function; put it into def {name}(), which can build it without memory")
    if value is not None and not callable(value):
        raise ModelError(f"{path.name}: {name} is {type(value).__name__}, not a function")
    return value


def _inputs(function: Callable[..., Any], build: Callable[[], nn.Module], *, path: Path) -> Callable[[int], Any]:
    takes_model = "model" in inspect.signature(function).parameters

    @cache
    def on_meta() -> nn.Module:
        with _disable_current_modes(), torch.device("meta"):  # inputs may run on fake tensors, which must not leak into what is kept
            return build()

    def inputs(batch_size: int) -> Any:
        known = {"model": on_meta()} if takes_model else {}
        try:
            batch = function(batch_size, **known)
        except (Exception, SystemExit) as error:  # the function is the user's and may raise anything
            raise ModelError(f"{_at(error, path)}: inputs({batch_size}) failed: {message_of(error)}") from None
        if not isinstance(batch, Mapping | tuple | list):
            found = f"{path.name}: inputs({batch_size}) returned {type(batch).__name__}"
            raise ModelError(f"{found}; return a tuple of positional or a dict of keyword arguments")
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(batch)):
            raise ModelError(f"{path.name}: inputs({batch_size}) holds no tensor")
        return batch

    return inputs


def _at(error: BaseException, path: Path) -> str:
    return user_line(error) or path.name
