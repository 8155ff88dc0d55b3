"""A checkpoint written under one plan is read under any other, and training goes on as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.models import gpt
from planner.errors import MismatchError
from planner.ir.mesh import Mesh
from planner.ir.plan import Plan, Stage
from planner.runtime import checkpoint
from planner.runtime.apply import parallelize
from planner.runtime.job import Job
from tests.runtime.pipeline_ranks import launch, result
from tests.runtime.plans import make_plan

MESHES = {
    "tp2 fsdp2": (Mesh(tp=2, dp_shard=2), 1),
    "fsdp4": (Mesh(dp_shard=4), 3),
    "pp2 fsdp2": (Mesh(pp=2, dp_shard=2), 1),
    "pp2 tp2": (Mesh(pp=2, tp=2), 0),
}
READERS = {"tp2 fsdp2": ("fsdp4", "pp2 tp2"), "pp2 tp2": ("tp2 fsdp2", "pp2 fsdp2")}


def plan_for(name: str, module: nn.Module) -> Plan:
    mesh, zero = MESHES[name]
    stages = (Stage("", ("",)), Stage("layers.1", ("layers.1",)))[: mesh.pp]
    return make_plan(module, gpt, mesh=mesh, zero=zero, stages=stages, vocabulary=mesh.tp > 1, microbatches=2)


def start(plan: Plan, *, seed: int) -> tuple[Job, torch.optim.Optimizer]:
    """A job with values from `seed`; AdamW with options that are not the default."""
    torch.manual_seed(seed)
    job = parallelize(gpt.tiny(layers=2), plan, loss=gpt.loss)
    return job, torch.optim.AdamW(job.parameters(), lr=1e-2 / (seed + 1), betas=(0.8, 0.9))


def step(job: Job, optimizer: torch.optim.Optimizer, seed: int) -> float:
    torch.manual_seed(seed)
    shape = (8, 16)
    batch = {"tokens": torch.randint(64, shape), "labels": torch.randint(64, shape)}
    loss = job.step(job.local_batch(batch))
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def write_and_read(rank: int, ranks: int, directory: Path) -> None:
    """Two steps under every plan, a checkpoint, and two more under every other one."""
    torch.set_default_dtype(torch.float64)
    plans = {name: plan_for(name, gpt.tiny(layers=2)) for name in MESHES}
    found: dict[str, Any] = {}
    for writer in READERS:
        folder = directory / writer
        job, optimizer = start(plans[writer], seed=0)
        for seed in range(2):
            step(job, optimizer, seed)
        checkpoint.save(job, optimizer, folder, step=2, extra={"seen": 16})
        found[writer] = [step(job, optimizer, seed) for seed in (2, 3)]
        for reader in READERS[writer]:
            job, optimizer = start(plans[reader], seed=1)
            about = checkpoint.load(job, optimizer, folder)
            found[f"{writer} -> {reader}"] = [step(job, optimizer, seed) for seed in (about.step, 3)]
            found["extra"] = about.extra
    torch.save(found, result(directory, rank))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("checkpoints")
    return directory, launch(write_and_read, 4, directory)[0]


@pytest.mark.distributed
@pytest.mark.parametrize(("writer", "reader"), [(writer, reader) for writer, readers in READERS.items() for reader in readers])
def test_training_goes_on_under_another_plan(written: tuple[Path, dict[str, Any]], writer: str, reader: str) -> None:
    """Weights, optimizer state and options come back whatever the mesh: the next losses are those of the job that was never stopped."""
    _, found = written
    assert pytest.approx(found[writer], abs=1e-9) == found[f"{writer} -> {reader}"]


@pytest.fixture
def alone() -> Any:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    dist.destroy_process_group()


@pytest.mark.distributed
@pytest.mark.usefixtures("alone")
def test_one_process_reads_what_four_ranks_wrote(written: tuple[Path, dict[str, Any]]) -> None:
    """The shards of a pipeline with tensor parallelism are a whole model to one process."""
    directory, found = written
    module = gpt.tiny(layers=2)
    job, optimizer = start(make_plan(module, gpt, mesh=Mesh(), microbatches=2), seed=1)
    about = checkpoint.load(job, optimizer, directory / "pp2 tp2")
    assert (2, {"seen": 16}) == (about.step, about.extra)
    assert pytest.approx(found["pp2 tp2"], abs=1e-9) == [step(job, optimizer, seed) for seed in (2, 3)]


@pytest.mark.usefixtures("alone")
def test_a_tied_parameter_is_stored_once(tmp_path: Path) -> None:
    """Under the first of its names."""
    module = gpt.tiny(layers=2)
    job, optimizer = start(make_plan(module, gpt, mesh=Mesh(), microbatches=2), seed=0)
    step(job, optimizer, 0)
    folder = checkpoint.save(job, optimizer, tmp_path, step=1)
    stored = torch.distributed.checkpoint.FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    names = {name.removeprefix("model.") for name in stored if name.startswith("model.")}
    assert {name for name, _ in module.named_parameters()} == names


@pytest.mark.usefixtures("alone")
def test_latest_is_the_last_complete_checkpoint(tmp_path: Path) -> None:
    """A folder that nothing points to does not count."""
    job, optimizer = start(make_plan(gpt.tiny(layers=2), gpt, mesh=Mesh(), microbatches=2), seed=0)
    assert checkpoint.latest(tmp_path) is None
    checkpoint.save(job, optimizer, tmp_path, step=1)
    folder = checkpoint.save(job, optimizer, tmp_path, step=2)
    (tmp_path / "step-00000003").mkdir()
    assert folder == checkpoint.latest(tmp_path)
    assert 2 == checkpoint.load(job, optimizer, tmp_path).step


@pytest.mark.usefixtures("alone")
def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    """No checkpoint, one of another model, one that is damaged."""
    job, optimizer = start(make_plan(gpt.tiny(layers=2), gpt, mesh=Mesh(), microbatches=2), seed=0)
    with pytest.raises(MismatchError, match="holds no complete checkpoint: there is no file 'latest'"):
        checkpoint.load(job, optimizer, tmp_path)
    folder = checkpoint.save(job, optimizer, tmp_path, step=1)
    about = json.loads((folder / "autopar.json").read_text())
    (folder / "autopar.json").write_text(json.dumps({**about, "fingerprint": "sha256:0"}))
    with pytest.raises(MismatchError, match=r"is a checkpoint of a model with digest sha256:0, the plan's is sha256:"):
        checkpoint.load(job, optimizer, tmp_path)
    (folder / "autopar.json").write_text("{")
    with pytest.raises(MismatchError, match=r"autopar.json cannot be read"):
        checkpoint.load(job, optimizer, tmp_path)


@pytest.mark.usefixtures("alone")
def test_state_dict_round_trip() -> None:
    """What load_state_dict reads is what state_dict gave, from whole tensors too; a missing name is an error."""
    plan = make_plan(gpt.tiny(layers=2), gpt, mesh=Mesh(), microbatches=2)
    first, _ = start(plan, seed=0)
    second, _ = start(plan, seed=1)
    state = {name: tensor.clone() for name, tensor in checkpoint.state_dict(first).items()}
    checkpoint.load_state_dict(second, state)
    assert all(torch.equal(state[name], tensor) for name, tensor in checkpoint.state_dict(second).items())
    del state["norm.bias"]
    with pytest.raises(MismatchError, match=r"the state has no norm\.bias"):
        checkpoint.load_state_dict(second, state)
