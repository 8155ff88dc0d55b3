"""Random numbers: masks of shards, of replicas, of data-parallel ranks, of recomputed blocks and of a resumed job (trap 7)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from planner.ir.mesh import Mesh
from planner.runtime.job import Job
from planner.runtime.rng import read_state
from tests.runtime import toys
from tests.runtime.pipeline_ranks import launch, result
from tests.runtime.plans import make_plan

KEPT, SAMPLES = 0.75, 64
PLANS: dict[str, dict[str, Any]] = {
    "tp": {"mesh": Mesh(tp=2)},
    "tp recompute": {"mesh": Mesh(tp=2), "recompute": "full"},
    "dp": {"mesh": Mesh(dp_shard=2), "zero": 3},
}


def part(tensor: Tensor) -> Tensor:
    return tensor.to_local().clone() if isinstance(tensor, DTensor) else tensor.clone()


def watch(module: nn.Module, seen: list[list[Tensor]]) -> None:
    """Collects [output, its gradient, the input's gradient] of every forward."""

    def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        found = [part(output.detach())]
        seen.append(found)
        if args[0].requires_grad:
            output.register_hook(lambda grad: found.append(part(grad)))
            args[0].register_hook(lambda grad: found.append(part(grad)))

    module.register_forward_hook(hook)


def job_of(options: dict[str, Any]) -> tuple[Job, dict[str, list[list[Tensor]]], dict[str, Tensor]]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = toys.Drops()
    plan = make_plan(model, sys.modules[toys.__name__], global_batch=SAMPLES, microbatches=2, **options)
    job = autopar.parallelize(model, plan, loss=toys.loss, weight=toys.weight, seed=7)
    seen: dict[str, list[list[Tensor]]] = {"inner": [], "outer": []}
    for name, found in seen.items():
        watch(job.module.get_submodule(f"layers.0.{name}"), found)
    return job, seen, toys.inputs(SAMPLES, model)


def train_all(rank: int, ranks: int, directory: Path) -> None:
    found: dict[str, Any] = {}
    for name, options in PLANS.items():
        job, seen, batch = job_of(options)
        state, before = torch.get_rng_state(), job.rng_state()
        job.step(job.local_batch(batch))
        found[name] = {key: list(value) for key, value in seen.items()}
        found[f"{name} gradients"] = {fqn: p.grad.full_tensor() for fqn, p in job.named_parameters()}
        found[f"{name} untouched"] = torch.equal(state, torch.get_rng_state())
        for later in ("next", "again"):
            seen["inner"].clear()
            job.step(job.local_batch(batch))
            found[f"{name} {later}"] = seen["inner"][0][0]
            job.load_rng_state({**before, "step": 1})
    torch.save(found, result(directory, rank))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(train_all, 2, tmp_path_factory.mktemp("draws"))


def masks(ranks: list[dict[str, Any]], name: str, which: str, microbatch: int = 0) -> list[Tensor]:
    """The output of a dropout of ones, by rank: 0 or 1/(1-p)."""
    return [found[name][which][microbatch][0] for found in ranks]


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["tp", "tp recompute"])
def test_shards_draw_differently_and_replicas_alike(ranks: list[dict[str, Any]], name: str) -> None:
    """The halves of a sharded tensor have different masks, together with the right rate; a replicated tensor has one mask."""
    left, right = masks(ranks, name, "inner")
    assert not torch.equal(left, right)
    whole = torch.cat([left, right], dim=-1)
    assert {0.0, 1 / KEPT} == set(whole.unique().tolist())
    rate, spread = float((whole != 0).double().mean()), (KEPT * (1 - KEPT) / whole.numel()) ** 0.5
    assert abs(rate - KEPT) < 5 * spread
    agreement = float((left == right).double().mean())
    assert abs(agreement - (KEPT**2 + (1 - KEPT) ** 2)) < 5 * 0.5 / left.numel() ** 0.5, "halves are independent"
    assert torch.equal(*masks(ranks, name, "outer"))


@pytest.mark.distributed
@pytest.mark.parametrize("which", ["inner", "outer"])
def test_data_parallel_ranks_and_microbatches_draw_differently(ranks: list[dict[str, Any]], which: str) -> None:
    """Other samples, other masks: of another rank, of another microbatch."""
    assert not torch.equal(*masks(ranks, "dp", which))
    for found in ranks:
        assert not torch.equal(found["tp"][which][0][0], found["tp"][which][1][0])


@pytest.mark.distributed
@pytest.mark.parametrize("name", list(PLANS))
def test_the_gradient_goes_through_the_mask(ranks: list[dict[str, Any]], name: str) -> None:
    """d input = d output x mask / (1 - p), on every rank, without recompute."""
    for found in ranks:
        for output, *grads in found[name]["inner"]:
            if len(grads) == 2:
                torch.testing.assert_close(grads[1], grads[0] * output, rtol=0, atol=1e-15)


@pytest.mark.distributed
def test_recompute_draws_what_forward_drew(ranks: list[dict[str, Any]]) -> None:
    """The second forward has the masks of the first, and gradients are those without recompute."""
    for found in ranks:
        first, again = found["tp recompute"]["inner"][:2]
        assert torch.equal(first[0], again[0])
        for fqn, grad in found["tp gradients"].items():
            torch.testing.assert_close(found["tp recompute gradients"][fqn], grad, rtol=0, atol=1e-14)


@pytest.mark.distributed
@pytest.mark.parametrize("name", list(PLANS))
def test_a_resumed_job_draws_the_same(ranks: list[dict[str, Any]], name: str) -> None:
    """The state is all that a step's draws depend on; the next step draws anew, and the caller's generator is not touched."""
    for found in ranks:
        assert torch.equal(found[f"{name} next"], found[f"{name} again"])
        assert not torch.equal(found[f"{name} next"], found[name]["inner"][0][0])
        assert found[f"{name} untouched"]


def test_a_state_that_is_none() -> None:
    """What is not the state of a job is refused with what it is."""
    with pytest.raises(autopar.AutoparError) as error:
        read_state({"seed": 1})
    assert "the state of the random numbers is {'seed': 1}; pass what job.rng_state() returned" == str(error.value)
