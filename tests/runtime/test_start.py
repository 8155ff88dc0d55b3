"""A start from the meta device: values, ties and buffers, whatever the mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

import autopar
from benchmarks.models import gpt, llama
from planner.errors import ModelError
from planner.ir.mesh import Mesh
from planner.ir.plan import Stage
from planner.runtime import materialize
from tests.runtime import toys
from tests.runtime.pipeline_ranks import launch, result
from tests.runtime.plans import make_plan

CPU = materialize.Start(torch.device("cpu"), 0)
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("zero 3", {"mesh": Mesh(dp_shard=2), "zero": 3}),
    ("tp", {"mesh": Mesh(tp=2), "sequence": True, "vocabulary": True}),
    ("pp", {"mesh": Mesh(pp=2), "stages": (Stage("", ("layers.0",)), Stage("layers.1", ("layers.1",)))}),
)


def fill(module: nn.Module, start: materialize.Start = CPU) -> nn.Module:
    materialize.fill(module, [name for name, _ in module.named_modules()], start)
    return module


def on_meta(build: Any) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = build()
    return module


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def start_all(rank: int, ranks: int, directory: Path) -> None:
    """Leaves the whole values of every parameter and buffer by plan, and the loss of one step with autocast compute."""
    found: dict[str, Any] = {}
    for zoo in (gpt, llama):
        torch.manual_seed(rank)  # a start on the meta device depends on the job's seed alone
        for name, options in PLANS:
            model = on_meta(lambda zoo=zoo: zoo.tiny(2))
            job = autopar.parallelize(model, make_plan(model, zoo, **options), loss=zoo.loss, weight=zoo.weight)
            values = {**dict(job.module.named_parameters()), **dict(job.module.named_buffers())}
            found[f"{zoo.__name__} {name}"] = {fqn: whole(value.detach()) for fqn, value in values.items()}
    found["bfloat16"] = mixed_precision()
    found["unequal"] = unequal_start(rank)
    torch.save(found, result(directory, rank))


def mixed_precision() -> tuple[str, bool]:
    """The dtype of the gradients, and whether the loss is finite, of a float32 model that computes in bfloat16 under tp alone."""
    model = on_meta(lambda: gpt.tiny(2))
    plan = make_plan(model, gpt, mesh=Mesh(tp=2), compute_dtype="bfloat16", sequence=True, vocabulary=True)
    job = autopar.parallelize(model, plan, loss=gpt.loss, weight=gpt.weight)
    torch.manual_seed(0)
    loss = job.step(job.local_batch(gpt.inputs(8, gpt.tiny(2))))
    return str(next(job.parameters()).grad.dtype), bool(loss.isfinite())


def unequal_start(rank: int) -> str:
    """What happens when each rank builds its own values."""
    torch.manual_seed(rank)
    model = gpt.tiny(2)
    try:
        autopar.parallelize(model, make_plan(model, gpt, mesh=Mesh(dp_shard=2), zero=1), loss=gpt.loss)
    except autopar.AutoparError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(start_all, 2, tmp_path_factory.mktemp("start"))


@pytest.mark.distributed
@pytest.mark.parametrize("zoo", [gpt, llama], ids=["gpt", "llama"])
def test_initial_values_do_not_depend_on_the_mesh(zoo: Any, started: list[dict[str, Any]]) -> None:
    """Every rank of every plan holds the values that one process gets from the same seed; ties and rotary buffers included (traps 1, 8)."""
    alone = fill(on_meta(lambda: zoo.tiny(2)))
    expected = {**dict(alone.named_parameters(remove_duplicate=False)), **dict(alone.named_buffers())}
    differing = [
        (rank, name, fqn)
        for rank, found in enumerate(started)
        for name, _ in PLANS
        for fqn, value in found[f"{zoo.__name__} {name}"].items()
        if not torch.equal(expected[fqn], value)
    ]
    assert [] == differing


@pytest.mark.distributed
def test_gradients_keep_the_parameters_dtype(started: list[dict[str, Any]]) -> None:
    """A float32 model that computes in bfloat16 gets float32 gradients, also without data parallelism."""
    assert [("torch.float32", True)] * 2 == [found["bfloat16"] for found in started]


@pytest.mark.distributed
def test_ranks_that_start_unequal_are_refused(started: list[dict[str, Any]]) -> None:
    text = (
        "parameter embedding.weight starts with different values on different ranks; "
        "call torch.manual_seed with the same seed on every rank before the model is built"
    )
    assert [text] * 2 == [found["unequal"] for found in started]


def test_buffers_are_those_of_a_model_built_off_the_meta_device() -> None:
    """Trap 8: rotary cosines and sines, which no state dict holds."""
    expected = dict(llama.tiny(2).named_buffers())
    found = dict(fill(on_meta(lambda: llama.tiny(2))).named_buffers())
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_tie_survives_and_keeps_its_first_owners_value() -> None:
    """Trap 1: embedding and head stay one parameter, initialised as the embedding is."""
    alone = fill(on_meta(gpt.tiny))
    untied = fill(on_meta(lambda: nn.ModuleDict({"embedding": gpt.Embedding(64, 32)})))
    assert alone.head.weight is alone.embedding.weight
    assert torch.equal(untied["embedding"].weight, alone.embedding.weight)


def test_built_values_are_kept() -> None:
    """A module that has values keeps them."""
    model = gpt.tiny(1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    after = dict(fill(model).named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_seed_changes_values_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = fill(on_meta(lambda: nn.Linear(3, 3)))
    other = fill(on_meta(lambda: nn.Linear(3, 3)), materialize.Start(torch.device("cpu"), 1))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(one.weight, other.weight)


def test_what_cannot_initialise_itself_is_refused() -> None:
    """Silence would train on garbage."""
    with pytest.raises(ModelError) as caught:
        fill(on_meta(toys.Uninitialised))
    expected = (
        "offset of the model (Uninitialised) has no value after a start on the meta device; "
        "give Uninitialised a reset_parameters() or init_buffers() that sets it, or build the model off the meta device"
    )
    assert expected == str(caught.value)
