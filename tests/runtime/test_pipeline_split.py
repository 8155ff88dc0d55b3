"""The stages of a model, one after the other, are the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.models import gpt, llama, lstm_seq2seq, resnet, t5, vit
from planner.errors import MismatchError, ModelError, PlanError
from planner.ir.mesh import Mesh
from planner.ir.placement import Partial, Replicate
from planner.ir.plan import Activation, Plan, Stage
from planner.runtime.materialize import Start, fill
from planner.runtime.split import split, why_not
from planner.runtime.stage import StagePart
from tests.runtime import pipeline_models
from tests.runtime.plans import make_plan


def plan_of(model: nn.Module, zoo: Any, *begins: str) -> Plan:
    stages = tuple(Stage(begin, ()) for begin in ("", *begins))
    return make_plan(model, zoo, mesh=Mesh(pp=len(stages)), stages=stages, microbatches=2, global_batch=4)


def parts_of(model: nn.Module, zoo: Any, *begins: str) -> list[StagePart]:
    plan = plan_of(model, zoo, *begins)
    return [split(model, plan, pp_rank=index, device=torch.device("cpu")) for index in range(len(begins) + 1)]


def chain(parts: list[StagePart], batch: Any) -> Any:
    """The output of the last stage."""
    values: Any = ()
    for part in parts:
        args, kwargs = part.module.arguments(batch)
        values = part.module(*args, **kwargs, **({"received": values} if values else {}))
    return values


CASES: dict[str, tuple[Callable[[], nn.Module], ModuleType, tuple[str, ...]]] = {
    "gpt": (gpt.tiny, gpt, ("layers.1", "norm")),
    "llama": (llama.tiny, llama, ("layers.1", "layers.3")),
    "t5": (t5.tiny, t5, ("decoder",)),
    "vit": (vit.tiny, vit, ("layers.1",)),
    "lstm": (lstm_seq2seq.tiny, lstm_seq2seq, ("decoder",)),
    "resnet": (resnet.tiny, resnet, ("stages",)),
    "skipping": (pipeline_models.Skipping, pipeline_models, ("b", "c")),
}


@pytest.mark.parametrize("name", CASES)
def test_stages_in_a_row_are_the_model(name: str) -> None:
    """Bit for bit, with the model's own output structure."""
    build, zoo, begins = CASES[name]
    torch.manual_seed(0)
    model = build().eval()
    batch = zoo.inputs(2, model)
    parts = parts_of(model, zoo, *begins)
    args, kwargs = parts[0].module.arguments(batch)
    expected, expected_spec = pytree.tree_flatten(model(*args, **kwargs))
    found, spec = pytree.tree_flatten(chain(parts, batch))
    assert expected_spec == spec
    assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(expected, found, strict=True))


def test_every_live_tensor_crosses() -> None:
    """A skip over two stages is handed through, integers carry no gradient, masks and tables are made anew on each stage (traps 9, 10)."""
    _, second, third = parts_of(pipeline_models.Skipping(), pipeline_models, "b", "c")
    through = [(value.border, value.dtype.is_floating_point, value.requires_grad) for value in second.received]
    assert [("a:output['x']", True, True), ("a:output['aux'][0]", True, True), ("", False, False)] == through
    assert {value.name for value in second.received} < {value.name for value in third.received}
    assert second.sent == third.received
    assert "table" in dict(second.module.named_buffers())


def test_a_stage_holds_its_own_parameters_only() -> None:
    """Together the stages hold every parameter once, tied ones on both stages under one name in the model (trap 1)."""
    model = gpt.tiny()
    parts = parts_of(model, gpt, "layers.2")
    counted = [name for part in parts for name, _ in part.module.named_parameters() if part.owns(name)]
    assert sorted(name for name, _ in model.named_parameters()) == sorted(counted)
    assert [("embedding.weight", ("embedding.weight",)), ("embedding.weight", ("head.weight",))] == [
        (part.shared[0].canonical, part.shared[0].fqns) for part in parts
    ]


def test_hooks_on_blocks_run() -> None:
    """A block of a stage is the user's module: hooks and a replaced forward take effect."""
    parts = parts_of(gpt.tiny(), gpt, "layers.2")
    called: list[str] = []
    for part in parts:
        for name, module in part.module.named_modules():
            if name.startswith("layers.") and name.count(".") == 1:
                module.register_forward_pre_hook(lambda module, args, name=name: called.append(f"before {name}"))
                module.register_forward_hook(lambda module, args, output, name=name: called.append(f"after {name}"))
    chain(parts, gpt.inputs(2, gpt.tiny()))
    assert [f"{when} layers.{index}" for index in range(4) for when in ("before", "after")] == called


def test_values_after_a_start_on_the_meta_device() -> None:
    """A stage initialises itself as the whole model does, modules that are cut included."""
    with torch.device("meta"):
        whole, cut = vit.tiny(), vit.tiny()
    start = Start(torch.device("cpu"), 3)
    fill(whole, tuple(name for name, _ in whole.named_modules()), start)
    expected = dict(whole.named_parameters())
    for part in parts_of(cut, vit, "layers.1"):
        assert all(parameter.is_meta for parameter in part.module.parameters())
        fill(part.module, tuple(name for name, _ in part.module.named_modules()), start)
        assert all(torch.equal(expected[name], parameter) for name, parameter in part.module.named_parameters())


class Secretive(nn.Module):
    """Hands a tensor to a block past its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Reader(), Reader()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        self.b.extra = y * 2
        z: Tensor = self.b(y)
        return z


class Reader(nn.Module):
    extra: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y if self.extra is None else y + self.extra


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        z: Tensor = self.b(y) if y.sum() > 0 else self.b(-y)
        return z


class Counting(nn.Module):
    """One batch norm, called on both sides of the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.a(self.norm(x)))
        return y


class Vectors:
    """Inputs of the models above."""

    @staticmethod
    def inputs(batch_size: int, model: nn.Module) -> dict[str, Tensor]:
        return {"x": torch.randn(batch_size, 4)}


@pytest.mark.parametrize(
    ("model", "begin", "error", "text"),
    [
        (
            Secretive,
            "b",
            ModelError,
            r"^the model cannot be cut into pipeline stages: b reads a tensor \(mul\) that is not among its arguments; plan",
        ),
        (Branching, "b", ModelError, r"^the model cannot be cut into pipeline stages: torch\.export failed with .*; plan with --mesh pp=1$"),
        (Counting, "a", ModelError, r"buffer norm\.num_batches_tracked is written by forward and read on stages 0, 1; plan with --mesh pp=1$"),
        (Counting, "gone", PlanError, r"^a stage begins at module 'gone', which forward does not call; plan this model again$"),
    ],
)
def test_why_a_model_cannot_be_cut(model: Callable[[], nn.Module], begin: str, error: type[Exception], text: str) -> None:
    """One line that names the reason."""
    made = model()
    with pytest.raises(error, match=text):
        split(made, plan_of(made, Vectors, begin), pp_rank=0)
    assert "" != why_not(made, plan_of(made, Vectors, begin))


@pytest.mark.parametrize("border", ["decoder:output", ":input['tokens']"])
def test_a_border_of_a_module_that_is_cut_is_refused(border: str) -> None:
    """No rank runs the module whole, so its border would silently never be applied."""
    model = t5.tiny()
    plan = plan_of(model, t5, "decoder.layers.1")
    moved = Activation(Partial(), Replicate(), Replicate(), Replicate())
    still = replace(moved, value_from=Replicate())
    assert "" == why_not(model, replace(plan, activations=((border, still), ("decoder.layers.*:output", moved))))
    wrong = replace(plan, activations=((border, moved),))
    with pytest.raises(MismatchError, match=f"^border {re.escape(border)}: (decoder|the model) is cut into pipeline stages, so no rank can"):
        split(model, wrong, pp_rank=1)
    assert border in why_not(model, wrong)
