"""Checkpoints through torch.distributed.checkpoint: every tensor once, by its name in the whole model, in shards that any other plan can read.

    directory/latest              the name of the last checkpoint that was written completely, replaced atomically
    directory/step-00000020/      the shards of torch.distributed.checkpoint
        model.<fqn>                       parameters and persistent buffers
        optimizer.<fqn>.state.<key>       the optimizer's tensors for a parameter
        optimizer.<fqn>.options           its group's options, as JSON
    directory/step-00000020/autopar.json  the step, the model's fingerprint, what the caller wants to keep

A parameter has the first of its names in the model, on whichever stage it lies; of copies on several stages one is stored.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor, distribute_tensor

from planner.errors import MismatchError
from planner.ir.plan import Plan
from planner.runtime.shared import Copies

LATEST = "latest"
ABOUT = "autopar.json"


class Trained(Protocol):
    """What a checkpoint needs of a job: its modules on this rank, the parameters it shares with other stages, and its plan."""

    @property
    def parts(self) -> tuple[nn.Module, ...]: ...

    @property
    def copies(self) -> tuple[Copies, ...]: ...

    @property
    def plan(self) -> Plan: ...


@dataclass(frozen=True, slots=True)
class About:
    """What a checkpoint says of itself; `extra` is the caller's, as JSON holds it."""

    step: int
    fingerprint: str
    extra: Mapping[str, Any]


def canonical_parameters(job: Trained) -> Iterator[tuple[str, nn.Parameter]]:
    """This rank's parameters, each once, under the first name that it has in the whole model."""
    first = {name: names[0] for names in job.plan.ties for name in names}
    shared = {id(copy.parameter): copy.canonical for copy in job.copies}
    seen: set[int] = set()
    for part in job.parts:
        for fqn, parameter in part.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield shared.get(id(parameter), first.get(fqn, fqn)), parameter


def persistent_buffers(job: Trained) -> Iterator[tuple[str, Tensor]]:
    """This rank's buffers that belong in a state dict."""
    for part in job.parts:
        for prefix, module in part.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    yield f"{prefix}.{name}" if prefix else name, buffer


def state_dict(job: Trained) -> dict[str, Tensor]:
    """This rank's parameters and persistent buffers by name, not copied; shards are DTensors. Stages hold different names."""
    return {name: tensor.detach() for name, tensor in (*canonical_parameters(job), *persistent_buffers(job))}


def load_state_dict(job: Trained, state: Mapping[str, Tensor]) -> None:
    """Copies values in: whole tensors, or DTensors placed as the job's. Raises MismatchError for a name that is missing or a wrong shape."""
    for name, tensor in state_dict(job).items():
        if name not in state:
            raise MismatchError(f"the state has no {name}; it has {len(state)} other names")
        value = state[name]
        if value.shape != tensor.shape:
            raise MismatchError(f"{name} is {tuple(value.shape)} in the state and {tuple(tensor.shape)} in the model")
        if isinstance(tensor, DTensor) and not isinstance(value, DTensor):
            value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(value)


def save(job: Trained, optimizer: torch.optim.Optimizer, directory: str | Path, *, step: int, extra: Mapping[str, Any] | None = None) -> Path:
    """Writes a checkpoint after `step` steps and makes it the latest; every rank calls it. Returns its folder."""
    folder = Path(directory) / f"step-{step:08d}"
    state = {**saved_model(job), **saved_optimizer(job, optimizer)}
    with quiet():
        dcp.save(state, checkpoint_id=str(folder))
    if dist.get_rank() == 0:
        about = {"step": step, "fingerprint": job.plan.model.fingerprint, "extra": dict(extra or {})}
        replace_text(folder / ABOUT, json.dumps(about, indent=1, sort_keys=True) + "\n")
        replace_text(Path(directory) / LATEST, folder.name + "\n")
    dist.barrier()
    return folder


def replace_text(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def latest(directory: str | Path) -> Path | None:
    """The folder of the last complete checkpoint, None if there is none yet."""
    pointer = Path(directory) / LATEST
    return Path(directory) / pointer.read_text(encoding="utf-8").strip() if pointer.exists() else None


def load(job: Trained, optimizer: torch.optim.Optimizer, directory: str | Path) -> About:
    """Reads the latest checkpoint into the job and its optimizer, whatever plan wrote it; every rank calls it.

    Raises MismatchError if there is none, if it is of another model, or if it lacks a tensor.
    """
    folder = latest(directory)
    if folder is None:
        raise MismatchError(f"{directory} holds no complete checkpoint: there is no file {LATEST!r} in it")
    about = read_about(folder)
    if about.fingerprint != job.plan.model.fingerprint:
        raise MismatchError(
            f"{folder} is a checkpoint of a model with digest {about.fingerprint[:19]}, the plan's is {job.plan.model.fingerprint[:19]}"
        )
    reader = dcp.FileSystemReader(str(folder))
    stored = reader.read_metadata()
    model = {f"model.{name}": tensor for name, tensor in state_dict(job).items()}
    check_stored(model, stored, folder)
    state = {**model, **optimizer_targets(job, stored)}
    with quiet():
        dcp.load(state, storage_reader=reader)
    restore_optimizer(job, optimizer, state)
    return about


def read_about(folder: Path) -> About:
    """What the checkpoint says of itself; MismatchError if it cannot be read."""
    try:
        content = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return About(content["step"], content["fingerprint"], content["extra"])
    except (OSError, ValueError, KeyError) as error:
        raise MismatchError(f"{folder / ABOUT} cannot be read ({error}); point {LATEST!r} to another checkpoint") from error


def check_stored(wanted: Mapping[str, Tensor], stored: Metadata, folder: Path) -> None:
    """MismatchError names the first tensor that the checkpoint lacks or has in another shape."""
    for name, tensor in wanted.items():
        found = stored.state_dict_metadata.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise MismatchError(f"{folder} has no tensor {name}")
        if found.size != tensor.shape:
            raise MismatchError(f"{name} is {tuple(found.size)} in {folder} and {tuple(tensor.shape)} in the model")


def saved_model(job: Trained) -> dict[str, Tensor]:
    """What this rank writes of the model."""
    lent = borrowed(job)
    return {f"model.{name}": tensor for name, tensor in state_dict(job).items() if name not in lent}


def borrowed(job: Trained) -> frozenset[str]:
    """The shared parameters that another rank writes."""
    return frozenset(copy.canonical for copy in job.copies if copy.source != dist.get_rank())


def saved_optimizer(job: Trained, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What this rank writes of the optimizer."""
    options = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    lent = borrowed(job)
    state: dict[str, Any] = {}
    for name, parameter in canonical_parameters(job):
        if name in lent or id(parameter) not in options:
            continue
        state[f"optimizer.{name}.options"] = json.dumps(plain_options(options[id(parameter)]), sort_keys=True)
        for key, value in optimizer.state.get(parameter, {}).items():
            state[f"optimizer.{name}.state.{key}"] = value
    return state


def plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group that JSON can hold; a learning rate kept as a tensor becomes a number."""
    plain = {key: value.item() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"}
    return {key: value for key, value in plain.items() if isinstance(value, int | float | str | bool | tuple | list | None)}


def optimizer_targets(job: Trained, stored: Metadata) -> dict[str, Any]:
    """Room for what the checkpoint holds of this rank's optimizer: shards like the parameter, or whole where the shape is another one."""
    targets: dict[str, Any] = {}
    keys: dict[str, list[str]] = {}
    for entry in stored.state_dict_metadata:
        name, _, key = entry.removeprefix("optimizer.").rpartition(".state.")
        if name and entry.startswith("optimizer."):
            keys.setdefault(name, []).append(key)
    for name, parameter in canonical_parameters(job):
        if f"optimizer.{name}.options" in stored.state_dict_metadata:
            targets[f"optimizer.{name}.options"] = ""
        for key in keys.get(name, []):
            entry = f"optimizer.{name}.state.{key}"
            targets[entry] = room(parameter, stored.state_dict_metadata[entry])
    return targets


def room(parameter: nn.Parameter, found: Any) -> Any:
    """A place to read one entry of an optimizer's state into."""
    if not isinstance(found, TensorStorageMetadata):
        return 0
    dtype = found.properties.dtype
    if found.size == parameter.shape and len(found.size) > 0:
        return torch.zeros_like(parameter.detach(), dtype=dtype)
    return torch.zeros(found.size, dtype=dtype)


def restore_optimizer(job: Trained, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Puts what was read into the optimizer; a group takes the options of its first parameter."""
    names = {id(parameter): name for name, parameter in canonical_parameters(job)}
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            name = names[id(parameter)]
            prefix = f"optimizer.{name}.state."
            found = {entry.removeprefix(prefix): value for entry, value in state.items() if entry.startswith(prefix)}
            if found:
                optimizer.state[parameter] = found
            if index == 0 and f"optimizer.{name}.options" in state:
                restore_options(group, json.loads(state[f"optimizer.{name}.options"]))


def restore_options(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Options of a group; JSON's lists become tuples again, a tensor keeps being one."""
    for key, value in options.items():
        if isinstance(group.get(key), Tensor):
            group[key].fill_(value)
        else:
            group[key] = tuple(value) if isinstance(value, list) else value


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of torch.distributed.checkpoint about its own use of TypedStorage and of a single process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
