"""Models that initialise their submodules themselves: transformers' convention, after a start on the meta device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from planner.ir.mesh import Mesh
from planner.ir.plan import Stage
from planner.runtime.initialisers import initialisers
from planner.runtime.materialize import Start, fill, start_of
from planner.runtime.split import split
from planner.trace.hf import hf_source
from tests.runtime.plans import make_plan

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 32,
    "initializer_range": 0.003,
}


def filled(model: nn.Module) -> nn.Module:
    fill(model, [name for name, _ in model.named_modules()], Start(torch.device("cpu"), 0, initialisers(model)))
    return model


def test_buffers_and_weights_of_a_hugging_face_model(tmp_path: Path) -> None:
    """Rotary frequencies are those of a model built with values; weights have the deviation that the configuration asks for."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    source = hf_source(path)
    with torch.device("meta"):
        model = source.model()
    expected, found = dict(source.model().named_buffers()), dict(filled(model).named_buffers())
    assert {"model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"} == set(expected)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert 0.003 == pytest.approx(float(model.lm_head.weight.detach().std()), rel=0.05)
    assert torch.equal(torch.ones(64), model.model.norm.weight)


class Scaled(nn.Module):
    """Holds a tensor of its own between two blocks, and sets everything inside it to `value`."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.shift = nn.Parameter(torch.empty(4))
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.blocks[1](self.blocks[0](x) + self.shift)
        return y

    def _init_weights(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=isinstance(module, nn.Linear)):
            parameter.fill_(self.value)
        if isinstance(module, Scaled):
            module.shift.fill_(-self.value)

    @staticmethod
    def inputs(batch_size: int, model: nn.Module) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch_size, 4)}


class Outer(Scaled):
    """A model with another one inside."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.inner = Scaled(2.0)


class Unrelated(nn.Module):
    """A method of the same name that takes no module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def _init_weights(self) -> None:
        raise AssertionError


def on_meta(build: type[nn.Module], *args: float) -> nn.Module:
    with torch.device("meta"):
        return build(*args)


def values(model: nn.Module) -> dict[str, set[float]]:
    return {name: set(parameter.flatten().tolist()) for name, parameter in model.named_parameters()}


def test_the_innermost_model_has_the_last_word() -> None:
    expected = {"shift": {-1.0}, "blocks.0.weight": {1.0}, "inner.shift": {-2.0}, "inner.blocks.1.bias": {2.0}}
    found = values(filled(on_meta(Outer)))
    assert expected == {name: found[name] for name in expected}


def test_values_that_exist_are_kept() -> None:
    """A model only part of which is on the meta device keeps the other part."""
    model = on_meta(Scaled, 3.0)
    model.blocks[0] = nn.Linear(4, 4)
    before = model.blocks[0].weight.detach().clone()
    with torch.device("cpu"):
        model.shift = nn.Parameter(torch.zeros(4))
    found = values(filled(model))
    assert torch.equal(before, model.blocks[0].weight)
    assert ({0.0}, {3.0}) == (found["shift"], found["blocks.1.weight"])


def test_other_methods_of_that_name_are_left_alone() -> None:
    assert () == initialisers(Unrelated())
    assert all(parameter.isfinite().all() for parameter in filled(on_meta(Unrelated)).parameters())


def test_stages_of_a_pipeline_start_as_the_model_does() -> None:
    """Also what belongs to the module that is cut: its own tensor goes to the stage that reads it."""
    model = on_meta(Scaled, 5.0)
    plan = make_plan(model, Scaled, mesh=Mesh(pp=2), stages=(Stage("", ()), Stage("blocks.1", ())), global_batch=4)  # type: ignore[arg-type]
    rules = initialisers(model)
    found: dict[str, set[float]] = {}
    for index in range(2):
        module = split(model, plan, pp_rank=index, device=torch.device("cpu")).module
        fill(module, [name for name, _ in module.named_modules()], Start(torch.device("cpu"), 0, rules))
        found |= values(module)
    assert {"shift", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias"} == set(found)
    assert {5.0} == set().union(*(found[name] for name in found if name != "shift"))
    assert {-5.0} == found["shift"]


class Shared(nn.Module):
    """Forward reads the table by its second name only."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.reader, self.head = nn.Embedding(8, 4), nn.Embedding(8, 4), nn.Linear(4, 4)
        self.reader.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.reader(tokens))
        return y

    @staticmethod
    def inputs(batch_size: int, model: nn.Module) -> dict[str, torch.Tensor]:
        return {"tokens": torch.randint(8, (batch_size, 3))}


def test_a_tied_table_starts_alike_under_any_of_its_names() -> None:
    """A stage that has it by a later name draws what the whole model does."""
    whole, cut = on_meta(Shared), on_meta(Shared)
    plan = make_plan(cut, Shared, mesh=Mesh(pp=2), stages=(Stage("", ()), Stage("head", ())), global_batch=4)  # type: ignore[arg-type]
    start = start_of(cut, torch.device("cpu"), 0)
    first = split(cut, plan, pp_rank=0, device=torch.device("cpu")).module
    fill(first, [name for name, _ in first.named_modules()], start)
    assert torch.equal(filled(whole).table.weight, first.reader.weight)
