"""A job of one rank, and what it refuses."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import DTensor

import autopar
from benchmarks.models import gpt, mlp
from planner.errors import MismatchError, PlanError
from planner.ir import plan_json
from planner.ir.batch import InputInfo
from planner.ir.mesh import Mesh
from planner.ir.placement import Partial, Replicate, Shard
from planner.ir.plan import Activation
from planner.ir.strategy import Collective
from planner.runtime import batches, borders, check, data_parallel, placements, world
from planner.runtime.record import compare, record
from tests.runtime.plans import make_plan

ONE = Mesh()
R, P = Replicate(), Partial()


@pytest.fixture
def alone() -> Iterator[None]:
    """Ends the process group that a job of one rank has started."""
    yield
    dist.destroy_process_group()


def job_of(model: nn.Module, **options: Any) -> autopar.Job:
    return autopar.parallelize(model, make_plan(model, gpt, mesh=ONE, **options), loss=gpt.loss, weight=gpt.weight)


@pytest.mark.usefixtures("alone")
def test_one_rank_computes_the_models_own_loss_and_norm() -> None:
    """Three microbatches of unequal weight add up to the loss, gradients and norm of the whole batch, and communicate nothing."""
    model, batch = gpt.tiny(1).double(), gpt.inputs(6, gpt.tiny(1))
    batch["labels"][0] = -100
    reference = copy.deepcopy(model)
    job = job_of(model, microbatches=3, global_batch=6)
    with record(job) as recorder:
        found = job.step(job.local_batch(batch))
    expected = gpt.loss(reference(batch["tokens"]), batch)
    expected.backward()
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(job.clip_grad_norm_(0.5), nn.utils.clip_grad_norm_(reference.parameters(), 0.5), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.norm.weight.grad, reference.norm.weight.grad, rtol=0, atol=1e-12)
    assert () == recorder.collectives()


@pytest.mark.usefixtures("alone")
def test_recompute_keeps_names_gradients_and_dropout() -> None:
    """The second forward of a block draws the masks of the first."""
    gradients = []
    for recompute in ("none", "full"):
        torch.manual_seed(0)
        job = job_of(gpt.tiny(2, dropout=0.5), recompute=recompute)
        torch.manual_seed(1)
        job.step(gpt.inputs(8, gpt.tiny(1)))
        gradients.append({name: p.grad for name, p in job.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


@pytest.mark.usefixtures("alone")
def test_a_plan_file_and_a_function_that_builds_the_model_will_do(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan_json.save(make_plan(gpt.tiny(1), gpt, mesh=ONE), path)
    job = autopar.parallelize(lambda: gpt.tiny(1), str(path), loss=gpt.loss)
    assert job.rank_summary() == "rank 0 on cpu: pp=0/1 dp_replicate=0/1 dp_shard=0/1 tp=0/1; 15,328 parameters in 0.1 MiB"


def test_a_plan_for_another_model_is_refused() -> None:
    """The message has both counts and digests, and a name that the plan has and the model lacks."""
    plan = make_plan(gpt.tiny(1), gpt, mesh=ONE)
    other = mlp.tiny(1)
    with pytest.raises(MismatchError) as caught:
        autopar.parallelize(other, plan, loss=mlp.loss)
    theirs, ours = plan.model.fingerprint[:19], make_plan(other, mlp, mesh=ONE).model.fingerprint[:19]
    expected = (
        f"the plan is for tiny with 15,328 parameters ({theirs}), this model has 1,072 ({ours}): "
        "it has no parameter embedding.weight; plan this model again"
    )
    assert expected == str(caught.value)


def test_too_few_ranks_are_refused_before_a_process_group_starts() -> None:
    model = gpt.tiny(1)
    with pytest.raises(MismatchError) as caught:
        autopar.parallelize(model, make_plan(model, gpt, mesh=Mesh(dp_shard=4, tp=2), global_batch=16), loss=gpt.loss)
    expected = "the plan needs 8 ranks (dp_shard=4 tp=2), 1 are running; start it with torchrun --nproc-per-node, or plan again with --gpus 1"
    assert expected == str(caught.value)
    assert not dist.is_initialized()


def test_axes_that_do_not_run_yet_are_refused() -> None:
    with pytest.raises(MismatchError, match="the plan has cp=2, which this version cannot run; plan again with --mesh cp=1"):
        world.check_world(Mesh(cp=2), 2)


def test_scalars_and_uneven_shards_are_refused() -> None:
    scalar = nn.Module()
    scalar.temperature = nn.Parameter(torch.ones(()))
    with pytest.raises(MismatchError, match=r"parameter temperature is a scalar, .*; give it the shape \(1,\)"):
        data_parallel.refuse_scalars(scalar)
    with pytest.raises(MismatchError, match=r"w \(5, 4\) cannot be S\(0\) over tp=2; plan this model again"):
        placements.check_divisible(torch.ones(5, 4), Shard(0), "w", 2)


def test_batches_that_do_not_divide_are_refused() -> None:
    """Trap 13: 3 samples on 2 data-parallel ranks."""
    plan = make_plan(gpt.tiny(1), gpt, mesh=Mesh(dp_shard=2), global_batch=8)
    with pytest.raises(MismatchError) as caught:
        batches.local_share(gpt.inputs(3, gpt.tiny(1)), plan, 0)
    assert str(caught.value) == "a global batch of 3 samples cannot be divided over 2 data-parallel ranks; use a multiple of 2"
    with pytest.raises(MismatchError) as caught:
        batches.microbatches(gpt.inputs(3, gpt.tiny(1)), plan)
    assert str(caught.value) == "a local batch of 3 samples cannot be divided into 2 microbatches; the plan wants 4 samples"
    with pytest.raises(MismatchError, match=r"the batch holds no batched tensor of the plan \(tokens, labels\)"):
        batches.microbatches({"x": torch.ones(4)}, plan)


def test_a_tensor_without_samples_is_not_cut() -> None:
    """The plan says which tensors count samples, also where another one happens to have as many rows."""
    plan = make_plan(gpt.tiny(1), gpt, mesh=Mesh(dp_shard=2), global_batch=8)
    table = InputInfo(("table",), (8, 3), "float32")
    plan = replace(plan, model=replace(plan.model, inputs=(table, *plan.model.inputs)))
    batch = {"table": torch.ones(8, 3), "tokens": torch.ones(8, 16)}
    share = batches.local_share(batch, plan, 1)
    assert (8, 4) == (len(share["table"]), len(share["tokens"]))


@given(parts=st.integers(1, 4), each=st.integers(1, 3), nested=st.booleans())
def test_shares_add_up_to_the_batch(parts: int, each: int, nested: bool) -> None:
    """Tensors with one row per sample are cut, everything else is in every share."""
    x, table = torch.arange(parts * each * 2).view(-1, 2), torch.ones(parts * each + 1)
    batch: Any = {"x": (x, None) if nested else x, "table": table, "scale": 2.0}
    shares = batches.split(batch, parts, parts * each)
    assert torch.equal(x, torch.cat([share["x"][0] if nested else share["x"] for share in shares]))
    assert all(share["table"] is table and share["scale"] == 2.0 for share in shares)


def test_border_names_are_parsed() -> None:
    activation = Activation(R, R, P, R)
    parsed = borders.parse_border("encoder.*:input['mask'][0]", activation)
    assert ("encoder.*", "input", "['mask'][0]") == (parsed.module, parsed.side, parsed.path)
    assert ("", "output", "") == (lambda b: (b.module, b.side, b.path))(borders.parse_border(":output", activation))
    with pytest.raises(PlanError, match="border 'encoder' is not of the form FQN:input or FQN:output"):
        borders.parse_border("encoder", activation)


@pytest.mark.usefixtures("alone")
def test_a_border_refuses_what_was_not_priced() -> None:
    """A placement other than the plan's is named, in forward and in backward, and so is a path that leads nowhere."""
    tp = world.start(ONE).tp
    x = placements.replicate_tree(torch.ones(2, 2), tp).requires_grad_()
    wrong = borders.parse_border("norm:output", Activation(P, R, R, R))
    with pytest.raises(MismatchError, match=r"border norm:output: expected P\(sum\), found R; the plan does not fit"):
        borders.cross(x, wrong)
    with pytest.raises(MismatchError, match=r"border norm:output: expected P\(sum\), found a tensor outside the mesh"):
        borders.cross(torch.ones(2), wrong)
    back = borders.cross(x, borders.parse_border("norm:output", Activation(R, R, P, R)))
    with pytest.raises(MismatchError, match=r"border norm:output \(gradient\): expected P\(sum\), found R"):
        back.sum().backward()
    nowhere = borders.parse_border("norm:output[1]", Activation(R, R, R, R))
    with pytest.raises(MismatchError, match=r"border norm:output\[1\]: the module hands on \[0\], nothing at \[1\]"):
        borders.at_path((x,), nowhere)


@pytest.mark.usefixtures("alone")
def test_a_border_takes_a_tensor_that_the_model_made_from_nothing() -> None:
    """Positions are the same on every rank, so they count as whole; their gradient is redistributed like any other and ends there."""
    tp = world.start(ONE).tp
    table = torch.ones(2, 2, requires_grad=True)
    crossed = borders.cross(table, borders.parse_border("norm:input", Activation(R, R, R, R), tp))
    assert (DTensor, True) == (type(crossed), crossed.requires_grad)
    crossed.sum().backward()
    assert table.grad is None


def test_comparison_names_what_differs() -> None:
    """Equal lists give nothing; otherwise the collective and both counts."""
    ran = (Collective("all_reduce", "tp", "forward", 8, 2),)
    assert () == compare(ran, (replace(ran[0], count=1), replace(ran[0], count=1)))
    assert ("all_reduce on tp in forward, 8 bytes: recorded 2, predicted 3",) == compare(ran, (replace(ran[0], count=3),))


def test_fingerprints_see_ties() -> None:
    """A model whose head is untied is another model."""
    model, untied = gpt.tiny(1), gpt.tiny(1)
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    check.check_model(model, make_plan(model, gpt, mesh=ONE))
    with pytest.raises(MismatchError):
        check.check_model(untied, make_plan(model, gpt, mesh=ONE))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import planner.runtime.apply", "ortools"),
        ("import autopar", "torch"),
        ("import autopar; autopar.load_plan", "torch"),
        ("import planner.driver", "planner.runtime"),
    ],
)
def test_planning_and_running_meet_in_the_plan_file_only(statement: str, absent: str) -> None:
    """Running loads no solver, planning no runtime, and the public module nothing until it is used."""
    code = f"import sys; {statement}; sys.exit(any(name == {absent!r} or name.startswith({absent!r} + '.') for name in sys.modules))"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
