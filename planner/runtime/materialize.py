"""Values for a module, submodule by submodule: built ones move to the device, those on the meta device are initialised there.

A module on the meta device has no values, so each submodule must know how to make its own: `reset_parameters()` for its parameters (all of
torch's modules have it), `init_buffers()` or `reset_parameters()` for its buffers; then the model may set them by rules of its own
(planner.runtime.initialisers). Each starts from a seed of its own, a digest of the job's
seed and the submodule's FQN, so initial values depend neither on the mesh nor on the rank. Floating-point tensors start as NaN, and what is
still NaN afterwards is an error: silence would train on garbage; so is a tensor of integers or booleans to which
nothing was written. A tied parameter gets its value from the owner of its first name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from planner.errors import ModelError
from planner.runtime.initialisers import Initialiser, apply, initialisers, innermost


@dataclass(frozen=True, slots=True)
class Start:
    """Where values live, which seed they come from, the model's own rules for its submodules, and for submodules that hold a tied parameter
    by a later name the one that has its first."""

    device: torch.device
    seed: int
    initialisers: tuple[tuple[str, Initialiser], ...] = ()
    first_owners: tuple[tuple[str, str], ...] = ()


def start_of(model: nn.Module, device: torch.device, seed: int) -> Start:
    """How the submodules of `model` start, also where a stage of a pipeline has only some of them."""
    owners: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = name.rpartition(".")[0]
        if owners.setdefault(id(parameter), owner) != owner:
            tied[owner] = owners[id(parameter)]
    return Start(device, seed, initialisers(model), tuple(tied.items()))


def fill(module: nn.Module, fqns: Iterable[str], start: Start) -> None:
    """Gives the parameters and buffers of the submodules `fqns` values on the device; ties are kept.

    Raises ModelError where a submodule on the meta device cannot initialise itself.
    """
    owners = tuple((fqn, module.get_submodule(fqn)) for fqn in fqns)
    fresh = {fqn: frozenset(name for name, tensor in own(owner) if tensor.is_meta) for fqn, owner in owners}
    allocate(owners, start.device)
    before = {fqn: {name: (id(tensor), tensor._version) for name, tensor in own(owner)} for fqn, owner in owners}
    done: set[int] = set()
    for fqn, owner in owners:
        if fresh[fqn]:
            initialise(owner, fqn, done, start)
        done.update(id(tensor) for _, tensor in own(owner))
    new = {id(tensor) for fqn, owner in owners for name, tensor in own(owner) if name in fresh[fqn]}
    for fqn, owner in reversed(owners):
        initialise_by_model(owner, fqn, new, start)
    for fqn, owner in owners:
        check_values(owner, fqn, fresh[fqn], before[fqn])


def own(owner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers that belong to `owner` itself, by name."""
    yield from owner.named_parameters(recurse=False, remove_duplicate=False)
    yield from owner.named_buffers(recurse=False, remove_duplicate=False)


def allocate(owners: tuple[tuple[str, nn.Module], ...], device: torch.device) -> None:
    """Puts every tensor of `owners` on `device`, contiguous; a tensor with several owners stays one."""
    moved: dict[int, Tensor] = {}
    originals = []  # keeps the ids in `moved` from being reused
    for _, owner in owners:
        for name, tensor in tuple(own(owner)):
            if id(tensor) not in moved:
                moved[id(tensor)] = moved_tensor(tensor, device)
                originals.append(tensor)
            setattr(owner, name, moved[id(tensor)])


def moved_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """The same values on `device`; NaN, or zeros where the dtype has none, for a tensor on the meta device."""
    if not tensor.is_meta and tensor.device == device and tensor.is_contiguous():
        return tensor
    if tensor.is_meta:
        values = torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        if values.is_floating_point() or values.is_complex():
            values.fill_(torch.nan)
    else:
        values = tensor.detach().to(device).contiguous()
    return nn.Parameter(values, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


@contextmanager
def drawing(fqn: str, start: Start) -> Iterator[None]:
    """Random numbers that depend on the seed and `fqn` alone; those of the caller go on afterwards as if none had been drawn."""
    name = dict(start.first_owners).get(fqn, fqn)
    digest = hashlib.sha256(f"{start.seed}:{name}".encode()).digest()
    devices = [start.device] if start.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(int.from_bytes(digest[:7], "big"))
        yield


def initialise(owner: nn.Module, fqn: str, done: set[int], start: Start) -> None:
    """Runs the submodule's own initialisers; tensors in `done` keep the values they have."""
    kept = [(tensor, tensor.detach().clone()) for _, tensor in own(owner) if id(tensor) in done]
    with drawing(fqn, start):
        for method in ("reset_parameters", "init_buffers"):
            if hasattr(owner, method):
                getattr(owner, method)()
        for tensor, value in kept:
            tensor.copy_(value)


def initialise_by_model(owner: nn.Module, fqn: str, new: set[int], start: Start) -> None:
    """Runs the model's initialiser on the submodule, unless there is something in it that is not among the `new` tensors.

    A model itself is skipped if all its tensors are in submodules: a pipeline may cut it, and then no rank could do the same.
    """
    rule = innermost(start.initialisers, fqn)
    inside = [*owner.parameters(), *owner.buffers()]
    only_around = any(fqn == model for model, _ in start.initialisers) and not any(True for _ in own(owner))
    if rule is not None and inside and not only_around and all(id(tensor) in new for tensor in inside):
        with drawing(fqn, start):
            apply(rule, owner)


def check_values(owner: nn.Module, fqn: str, fresh: frozenset[str], before: Mapping[str, tuple[int, int]]) -> None:
    """ModelError names a tensor among `fresh` that has no value; `before` are the identity and the version of each tensor when it was made."""
    new = [(name, tensor) for name, tensor in own(owner) if name in fresh]
    unset = [name for name, tensor in new if not has_value(tensor, written=before[name] != (id(tensor), tensor._version))]
    if unset:
        raise ModelError(
            f"{unset[0]} of {fqn or 'the model'} ({type(owner).__name__}) has no value after a start on the meta device; "
            f"give {type(owner).__name__} a reset_parameters() or init_buffers() that sets it, or build the model off the meta device"
        )


def has_value(tensor: Tensor, *, written: bool) -> bool:
    """Whether an initialiser has set all of `tensor`, which was NaN or zero before; `written` says that it wrote to it, or made it anew."""
    if tensor.is_floating_point() or tensor.is_complex():
        return not bool(tensor.isnan().any())
    return written or bool(tensor.any())  # writes through .data are not counted
