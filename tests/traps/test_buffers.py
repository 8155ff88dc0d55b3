"""Trap 8: buffers that no state dict holds, after a start on the meta device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planner.errors import ModelError
from planner.runtime.materialize import Start, fill
from planner.trace.load import load
from tests.traps.cells import MODELS, WORLDS, cells
from tests.traps.conftest import Ran

NAMES = ("rotary.inv_freq", "rotary.positions", "rotary.visible")
BUFFERED = [(ranks, name) for ranks, world in WORLDS.items() for name in world if name.startswith("8 ")]


def filled(build: object) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = build()  # type: ignore[operator]
    fill(module, [name for name, _ in module.named_modules()], Start(torch.device("cpu"), 0))
    return module


@pytest.mark.parametrize(("ranks", "name"), BUFFERED)
def test_the_plan_lists_what_must_be_restored(ranks: int, name: str) -> None:
    assert NAMES == cells(ranks)[name].plan.buffers


def test_restored_buffers_are_those_of_a_real_build() -> None:
    """Floats, integers and booleans."""
    source = load(str(MODELS / "buffers.py"))
    expected, found = dict(source.model().named_buffers()), dict(filled(source.model).named_buffers())
    assert NAMES == tuple(expected) == tuple(found)
    assert all(torch.equal(expected[name], found[name]) for name in NAMES)


@pytest.mark.distributed
def test_buffers_made_in_init_only_are_refused_after_a_start_on_the_meta_device(ran: Ran) -> None:
    """On every rank, before the first step."""
    text = (
        "planner.errors.ModelError: inv_freq of rotary (Forgetful) has no value after a start on the meta device; "
        "give Forgetful a reset_parameters() or init_buffers() that sets it, or build the model off the meta device\n"
    )
    assert [True, True] == [found["8 forgetful meta"].error.endswith(text) for found in ran(2)]


class Positions(nn.Module):
    """An integer and a boolean buffer; `names` are the ones its initialiser sets."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.register_buffer("numbers", torch.arange(4), persistent=False)
        self.register_buffer("mask", torch.ones(4).bool(), persistent=False)

    def init_buffers(self) -> None:
        for name in self.names:
            getattr(self, name).zero_()


@pytest.mark.parametrize(("names", "missing"), [((), "numbers"), (("numbers",), "mask"), (("mask",), "numbers")])
def test_integers_and_booleans_without_a_value_are_refused(names: tuple[str, ...], missing: str) -> None:
    """They have no NaN to show that nothing was written; zeros would be silence."""
    with pytest.raises(ModelError, match=f"^{missing} of the model \\(Positions\\) has no value after a start on the meta device"):
        filled(lambda: Positions(*names))


def test_a_value_of_zeros_is_a_value() -> None:
    assert [0, 0, 0, 0] == filled(lambda: Positions("numbers", "mask")).get_buffer("numbers").tolist()
