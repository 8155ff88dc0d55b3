"""What holds for all rules: divisibility, order, tensors without gradient, in-place operators, missing rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import RuleError
from planner.ir.graph import Op, Tensor, TensorArg
from planner.ir.placement import RP, P, R, S
from planner.ir.strategy import Collective, Strategy
from planner.rules.leaf import layouts
from planner.rules.table import has_rule, strategies

A, B = TensorArg(0), TensorArg(1)


def tensor(name: str, *shape: int, grad: bool = True, dtype: str = "float32") -> Tensor:
    return Tensor(name, shape, dtype, name, grad)


def offered(op: Op, *tensors: Tensor, degree: int = 2) -> tuple[Strategy, ...]:
    return strategies(op, {t.name: t for t in tensors}, degree)


def product(inputs: tuple[str, ...] = ("x", "w")) -> Op:
    return Op("mm", "aten.mm.default", inputs, ("y",), (A, B), "layers.0.wq", 0)


def test_sums_that_backward_copies_are_summed_there() -> None:
    """A reshape of a transposed gradient copies it, and DTensor sums what is pending first: one all_reduce of the gradient, declared."""
    view = Op("view", "aten.view.default", ("x",), ("y",), (A, (2, 12, 16)), "wk", 0)
    clone = Op("clone", "aten.clone.default", ("grad.y",), ("grad.c",), (A,), "wk", 0, origin="view")
    tensors = {t.name: t for t in (tensor("x", 2, 6, 32), tensor("y", 2, 12, 16))}
    assert Strategy((RP,), (RP,), False) in strategies(view, tensors, 2)
    copied = strategies(view, tensors, 2, backward=(clone,))
    assert Strategy((R,), (RP,), False, (Collective("all_reduce", "tp", "backward", 2 * 12 * 16 * 4),)) in copied
    assert Strategy((RP,), (RP,), False) not in copied


def test_column_and_row_parallel_products() -> None:
    """The whole offer for a product, in order: whole, rows, contraction, columns, sums passing, gradients that are sums."""
    offer = [str(s) for s in offered(product(), tensor("x", 8, 16), tensor("w", 16, 4), tensor("y", 8, 4))]
    assert [
        "R/R, R/R -> R/R",
        "S(0)/S(0), R/P(sum) -> S(0)/S(0)",
        "S(1)/S(1), S(0)/S(0) -> P(sum)/R",
        "R/P(sum), S(1)/S(1) -> S(1)/S(1)",
        "P(sum)/R, R/P(sum) -> P(sum)/R",
        "R/P(sum), P(sum)/R -> P(sum)/R",
        "R/P(sum), R/P(sum) -> R/P(sum)",
    ] == offer


def test_every_rank_works_unless_the_op_is_divided() -> None:
    found = offered(product(), tensor("x", 8, 16), tensor("w", 16, 4), tensor("y", 8, 4))
    assert [False, True, True, True, False, False, False] == [s.divided for s in found]


def test_a_frozen_weight_has_no_gradient_to_reduce() -> None:
    found = offered(product(), tensor("x", 8, 16), tensor("w", 16, 4, grad=False), tensor("y", 8, 4))
    assert Strategy((S(0), R), (S(0),), divided=True) in found
    assert [] == [s for s in found if s.inputs[1] == RP]


def test_degree_one_offers_the_whole_op_only() -> None:
    found = offered(product(), tensor("x", 8, 16), tensor("w", 16, 4), tensor("y", 8, 4), degree=1)
    assert (Strategy((R, R), (R,), divided=False),) == found


def test_a_tensor_read_twice_has_one_layout() -> None:
    square = Op("mul", "aten.mul.Tensor", ("x", "x"), ("y",), (A, B), "", 0)
    found = offered(square, tensor("x", 8, 16), tensor("y", 8, 16))
    assert [("R/R", "R/R"), ("S(0)/S(0)",) * 2, ("S(1)/S(1)",) * 2, ("R/P(sum)",) * 2] == [tuple(map(str, s.inputs)) for s in found]


def test_a_comparison_accepts_a_tensor_whose_gradient_is_a_sum() -> None:
    """No gradient flows through it, so the tensor's other consumers decide."""
    op = Op("gt", "aten.gt.Scalar", ("x",), ("y",), (A, 0.0), "", 0)
    found = offered(op, tensor("x", 8), tensor("y", 8, grad=False, dtype="bool"))
    assert [(R,), (RP,), (S(0),)] == [s.inputs for s in found]


def test_in_place_operators_use_the_functional_rule_and_stay_where_they_are() -> None:
    x, y, out = tensor("x", 8, 4), tensor("y", 8, 4), tensor("out", 8, 4)
    found = offered(Op("add", "aten.add_.Tensor", ("x", "y"), ("out",), (A, B), "", 0), x, y, out)
    assert (P, R) in [s.inputs for s in found]
    assert (R, P) not in [s.inputs for s in found]


@pytest.mark.parametrize("target", ["lstm", "gru", "rnn", "opaque", "aten.native_group_norm.default", "aten.nonzero.default"])
def test_a_missing_rule_names_operator_and_module(target: str) -> None:
    op = Op("op", target, ("x",), ("y",), (A,), "encoder.rnn", 0)
    assert not has_rule(target)
    with pytest.raises(RuleError, match=f"no rule for {target} in encoder.rnn: it cannot run inside a tensor parallel region"):
        offered(op, tensor("x", 8), tensor("y", 8))


def test_polar_with_a_gradient_has_no_rule() -> None:
    """DTensor cannot run its backward; tables of rotations have none."""
    op = Op("polar", "aten.polar.default", ("r", "a"), ("y",), (A, B), "rope", 0)
    with pytest.raises(RuleError, match=r"no rule for aten.polar.default with a gradient in rope"):
        offered(op, tensor("r", 8), tensor("a", 8), tensor("y", 8, dtype="complex64"))


def test_kv_heads_limit_attention() -> None:
    """8 query heads share 2 KV heads: on 4 ranks only the batch may be split, on 2 the heads too."""
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    op = Op("sdpa", name, ("q", "k", "v"), ("o", "l"), (A, B, TensorArg(2), 0.0, True), "", 0)
    tensors = (tensor("q", 4, 8, 6, 16), tensor("k", 4, 2, 6, 16), tensor("v", 4, 2, 6, 16), tensor("o", 4, 8, 6, 16))
    statistic = tensor("l", 4, 8, 6, grad=False)
    split = {degree: [s.outputs[0] for s in offered(op, *tensors, statistic, degree=degree)] for degree in (2, 4)}
    assert {2: [R, S(0), S(1)], 4: [R, S(0)]} == split


def test_leaves_offer_even_slices_only() -> None:
    assert (R, RP, S(1)) == layouts((6, 8), requires_grad=True, degree=4)
    assert (R, S(0), S(1)) == layouts((8, 8), requires_grad=False, degree=4)
    assert (R,) == layouts((8, 8), requires_grad=True, degree=1)
    assert (R, RP) == layouts((), requires_grad=True, degree=2)


@given(st.lists(st.integers(1, 12), min_size=3, max_size=3), st.sampled_from([2, 3, 4]))
def test_no_strategy_splits_a_dim_that_does_not_divide(sizes: list[int], degree: int) -> None:
    rows, inner, columns = sizes
    tensors = tensor("x", rows, inner), tensor("w", inner, columns), tensor("y", rows, columns)
    for strategy in offered(product(), *tensors, degree=degree):
        for layout, each in zip((*strategy.inputs, *strategy.outputs), tensors, strict=True):
            assert not layout.value.is_shard or each.shape[layout.value.dim] % degree == 0
