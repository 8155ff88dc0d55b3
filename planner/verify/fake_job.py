"""One rank of a plan in one process: a process group that moves nothing, tensors that hold nothing.

The model is built on the meta device and its tensors become fake ones; then the runtime applies the plan and steps exactly as it would on the
devices. `parallelize` runs outside the fake mode, because meshes of ranks are tensors too; a step runs inside, because it makes
tensors of its own. What a program reads out of a fake tensor is 0: weights of microbatches, sums of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor._redistribute import _gen_transform_infos
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

from planner.errors import MismatchError
from planner.ir.plan import Plan
from planner.runtime.apply import parallelize
from planner.runtime.job import Job
from planner.trace.fake import fake_batch, make_fake
from planner.trace.source import ModelSource

Kwargs = Mapping[str, object]


class Hollow(FakeTensorMode):  # type: ignore[misc]  # torch is untyped here
    """Fake tensors among real ones: what has only real inputs stays real (meshes, schedules), and numbers read from fake tensors are 0."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here, and to guard against it takes time at each of many operators

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Kwargs | None = None) -> object:
        if func is torch.ops.prim.device.default:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if is_fake and func is torch.ops.aten._local_scalar_dense.default:
            return torch.zeros((), dtype=tensors[0].dtype).item()
        if tensors and not is_fake:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs or {})


@contextmanager
def fake_group(rank: int, *, ranks: int) -> Iterator[None]:
    """The process group of `rank` among `ranks`, of which only this one exists. MismatchError if the process has a real one."""
    if dist.is_initialized():
        raise MismatchError("this process belongs to a process group; verify shapes in a process of its own, without torchrun")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # what DTensor remembers of its operators leads to the groups that are gone
        _gen_transform_infos.cache_clear()


def fake_job(plan: Plan, source: ModelSource, *, mode: Hollow) -> Job:
    """This rank's job; call it in a `fake_group`, outside `mode`."""
    with torch.device("meta"):
        model = source.model()
    make_fake(model, mode=mode, compute_dtype=None)
    return parallelize(model, plan, loss=source.loss, weight=source.weight)


def fake_share(job: Job, source: ModelSource, *, mode: Hollow) -> Any:
    """This rank's share of a global batch, in storage of its own; call it inside `mode`."""
    whole = fake_batch(source.inputs(job.plan.schedule.global_batch), mode=mode, compute_dtype=None)
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, job.local_batch(whole))
