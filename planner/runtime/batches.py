"""Shares of a batch: of one data-parallel rank, and of one microbatch. The batch dim is the first."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from planner.errors import MismatchError
from planner.ir.batch import Key
from planner.ir.plan import Plan


def keys(path: tuple[Any, ...]) -> tuple[Key, ...]:
    """A pytree path as a plan writes it: names and numbers."""
    return tuple(getattr(key, "key", getattr(key, "idx", str(key))) for key in path)


def batch_size(batch: Any, plan: Plan) -> int:
    """Samples in `batch`: the first dim of its first tensor that the plan says is batched; MismatchError if there is none."""
    whole = unbatched(plan)
    known = {info.path for info in plan.model.inputs if info.shape}
    for path, leaf in pytree.tree_flatten_with_path(batch)[0]:
        if isinstance(leaf, Tensor) and leaf.ndim and keys(path) in known - whole:
            return int(leaf.shape[0])
    wanted = ", ".join(".".join(map(str, info.path)) for info in plan.model.inputs)
    raise MismatchError(f"the batch holds no batched tensor of the plan ({wanted}); pass what inputs(batch_size) of the model file returns")


def unbatched(plan: Plan) -> frozenset[tuple[Key, ...]]:
    """Where the tensors of a batch are whose first dim does not count samples."""
    return frozenset(info.path for info in plan.model.inputs if info.shape[:1] != (plan.schedule.microbatch_size,))


def split(batch: Any, parts: int, samples: int, *, whole: frozenset[tuple[Key, ...]] = frozenset()) -> tuple[Any, ...]:
    """`batch` in `parts` equal shares: tensors with `samples` rows are cut, everything else, and what is at the paths `whole`, goes to each
    share as it is."""
    leaves, spec = pytree.tree_flatten_with_path(batch)

    def share(path: tuple[Any, ...], leaf: Any, index: int) -> Any:
        if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == samples and keys(path) not in whole:
            return leaf.narrow(0, index * (samples // parts), samples // parts)
        return leaf

    return tuple(pytree.tree_unflatten([share(path, leaf, index) for path, leaf in leaves], spec) for index in range(parts))


def local_share(batch: Any, plan: Plan, dp_rank: int) -> Any:
    """The contiguous share of a global batch that belongs to data-parallel rank `dp_rank`; MismatchError if it does not divide."""
    samples, ranks = batch_size(batch, plan), plan.mesh.dp
    if samples % ranks:
        raise MismatchError(
            f"a global batch of {samples} samples cannot be divided over {ranks} data-parallel ranks; use a multiple of {ranks}"
        )
    return split(batch, ranks, samples, whole=unbatched(plan))[dp_rank]


def microbatches(batch: Any, plan: Plan) -> tuple[Any, ...]:
    """The microbatches of one rank's batch; MismatchError if it does not divide."""
    samples, parts = batch_size(batch, plan), plan.schedule.microbatches
    if samples % parts:
        wanted = parts * plan.schedule.microbatch_size
        raise MismatchError(f"a local batch of {samples} samples cannot be divided into {parts} microbatches; the plan wants {wanted} samples")
    return split(batch, parts, samples, whole=unbatched(plan))
