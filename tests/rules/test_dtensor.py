"""DTensor runs every strategy of the table as the table states it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from planner.ir.placement import Placement, Replicate, Shard
from planner.ir.strategy import Strategy
from planner.rules.table import RULES, strategies
from tests.rules.catalogue import CASES, CONV, EINSUM, SELECTED
from tests.rules.oracle import Case, Observed, distribute, observe, ranks, reference, whole

pytestmark = pytest.mark.filterwarnings("ignore")


def test_four_ranks() -> None:
    """As below, for one call of each kind that depends on the degree; the first test, since a process has one world at a time."""
    with ranks(4) as four:
        for case in SELECTED:
            check(case, four)


@pytest.fixture(scope="module")
def two() -> Iterator[DeviceMesh]:
    with ranks(2) as mesh:
        yield mesh


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_strategy_runs_as_stated(case: Case, two: DeviceMesh) -> None:
    """Forward and backward communicate nothing, and outputs and gradients lie where the strategy says, with the values of one device."""
    check(case, two)


def check(case: Case, mesh: DeviceMesh) -> None:
    op, tensors = case.graph()
    values, gradients = reference(case)
    for strategy in strategies(op, tensors, mesh.size()):
        if any(layout.value.reduction == "loss" for layout in (*strategy.inputs, *strategy.outputs)):
            continue  # only the pair of operators is meaningful: test_loss_parallel
        placed = [layout.value for layout in strategy.inputs], [layout.grad for layout in strategy.outputs]
        seen = observe(case, mesh, *placed)
        assert _stated(strategy, seen) == _shown(case, strategy, seen)
        if case.defined:
            torch.testing.assert_close(seen.values, tuple(values), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(_some(seen.gradient_values), _some(gradients), rtol=1e-5, atol=1e-5)


def test_hidden_communication_is_seen(two: DeviceMesh) -> None:
    """A product whose operands do not match is repaired by DTensor with an all_gather; the oracle reports it, so such a rule would fail."""
    seen = observe(EINSUM[0], two, [Shard(0), Shard(0)], [Shard(0)])
    assert (("all_gather", 16 * 4 * 8),) == seen.forward


def test_convolution_offers_the_batch_only(two: DeviceMesh) -> None:
    """DTensor runs a split of the height without communication and without an error, and the values are wrong: never offered."""
    op, tensors = CONV[0].graph()
    assert [Replicate(), Shard(0)] == [strategy.inputs[0].value for strategy in strategies(op, tensors, 2)]
    wrong = CONV[0].call([distribute(CONV[0].tensors()[0], Shard(2), two), *(distribute(t, Replicate(), two) for t in CONV[0].tensors()[1:])])
    with pytest.raises(AssertionError, match="replicas differ"):
        whole(wrong[0])


def test_every_rule_has_a_case() -> None:
    """A rule that was never held against DTensor may not be in the table."""
    tried = {case.target for case in CASES}
    assert set() == {target for target in RULES if target not in tried and not _elsewhere(target)}


_OTHER_DEVICES = ("attention", "batch_norm")


def _elsewhere(target: str) -> bool:
    """Operators without inputs, and kernels that only exist on other devices."""
    return not strategies_need_inputs(target) or any(kernel in target for kernel in _OTHER_DEVICES)


def strategies_need_inputs(target: str) -> bool:
    """Whether the operator reads tensors at all."""
    packet, _, overload = target.removeprefix("aten.").rpartition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
    return any("Tensor" in str(argument.type) for argument in schema.arguments)


def _some(tensors: tuple[torch.Tensor | None, ...] | list[torch.Tensor | None]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _stated(strategy: Strategy, seen: Observed) -> tuple[object, ...]:
    """The strategy in the form of an observation; inputs without gradient drop out."""
    gradients = tuple(layout.grad if found is not None else None for layout, found in zip(strategy.inputs, seen.gradients, strict=True))
    return strategy, tuple(layout.value for layout in strategy.outputs), gradients, (), ()


def _shown(case: Case, strategy: Strategy, seen: Observed) -> tuple[object, ...]:
    gradients = tuple(_kept(case, layout.value, found) for layout, found in zip(strategy.inputs, seen.gradients, strict=True))
    return strategy, seen.outputs, gradients, seen.forward, seen.backward


def _kept(case: Case, value: Placement, gradient: Placement | None) -> Placement | None:
    """The one place where DTensor returns a whole gradient for a slice: a table split by rows. The runtime cuts it, which is free."""
    if case.target == "aten.embedding.default" and value.is_shard and value.dim == 0 and gradient == Replicate():
        return value
    return gradient
