"""Elementwise operators with broadcasting.

A dim of the output may be split; an input that has the dim is split with it, one that is broadcast along it stays whole and its gradient,
summed over the split dim, is a sum over the ranks. An input without gradient (a mask, a table of positions) may also be whole: DTensor cuts
it, which is free. Sums (`P`) pass only where the operator is linear: through both sides of an addition, one side of a product, the numerator
of a quotient. In an addition, a whole tensor may join a sum: one rank adds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from planner.errors import RuleError
from planner.ir.graph import Tensor
from planner.ir.placement import RP, Layout, P, R, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided, partial_gradient, repeated


def pointwise(call: Call) -> Iterator[Strategy]:
    """Any elementwise operator, linear or not."""
    for dim in range(len(call.out)):
        options = (_aligned(tensor, call.out, dim) for tensor in call.inputs)
        for inputs in product(*options):
            if any(layout.value.is_shard for layout in inputs):
                yield divided(inputs, *(S(dim) for _ in call.outputs))


def _aligned(tensor: Tensor, out: tuple[int, ...], dim: int) -> tuple[Layout, ...]:
    own = dim - (len(out) - len(tensor.shape))
    if own < 0 or tensor.shape[own] != out[dim]:
        return (RP,)
    return (S(own),) if tensor.requires_grad else (S(own), R)


def smooth(call: Call) -> Iterator[Strategy]:
    """Operators whose backward multiplies the gradient by a tensor: a gradient that is a sum may pass."""
    yield from pointwise(call)
    yield partial_gradient(call)


def linear(call: Call) -> Iterator[Strategy]:
    """Linear in its only tensor: negation, casts."""
    yield from smooth(call)
    yield repeated((P,), P)


def sum_of(call: Call) -> Iterator[Strategy]:
    """Additions: a sum over the ranks plus a sum over the ranks, or plus a whole tensor."""
    yield from smooth(call)
    if len(call.inputs) == 2:
        yield repeated((P, P), P)
        yield repeated((P, R), P)
        yield repeated((R, P), P)


def product_of(call: Call) -> Iterator[Strategy]:
    """Products: linear in each factor. Complex sums are left out: DTensor does not conjugate them."""
    yield from smooth(call)
    if len(call.inputs) == 1:
        yield repeated((P,), P)
    elif not any(tensor.dtype.startswith("complex") for tensor in call.inputs):
        yield repeated((P, RP), P)
        yield repeated((RP, P), P)


def quotient(call: Call) -> Iterator[Strategy]:
    """Quotients: linear in the numerator."""
    yield from smooth(call)
    yield repeated((P,) if len(call.inputs) == 1 else (P, RP), P)


def without_gradient(call: Call) -> Iterator[Strategy]:
    """Elementwise operators whose backward DTensor cannot run; RuleError where they have one."""
    if any(tensor.requires_grad for tensor in call.outputs):
        raise RuleError(f"no rule for {call.op.target} with a gradient{call.where}: it cannot run inside a tensor parallel region")
    yield from pointwise(call)


def nothing(call: Call) -> Iterator[Strategy]:
    """Only the all-replicated strategy, which the table adds."""
    yield from ()


_ANY = (
    "bitwise_and.Tensor", "bitwise_not.default", "bitwise_or.Tensor", "ceil.default", "celu.default", "clamp.default", "clamp_max.default",
    "clamp_min.default", "elu.default", "empty_like.default", "eq.Scalar", "eq.Tensor", "floor.default", "floor_divide.default",
    "full_like.default", "ge.Scalar", "ge.Tensor", "gelu.default", "gt.Scalar", "gt.Tensor", "isinf.default", "isnan.default", "le.Scalar",
    "le.Tensor", "leaky_relu.default", "logical_and.default", "logical_not.default", "logical_or.default", "lt.Scalar", "lt.Tensor",
    "masked_fill.Scalar", "maximum.default", "minimum.default", "ne.Scalar", "ne.Tensor", "ones_like.default", "pow.Scalar",
    "pow.Tensor_Tensor", "relu.default", "remainder.Scalar", "round.default", "selu.default", "sigmoid.default", "sign.default", "silu.default",
    "softplus.default", "tanh.default", "where.ScalarOther", "where.self", "zeros_like.default",
)  # fmt: skip

_SMOOTH = (
    "abs.default", "add.Scalar", "addcmul.default", "atan.default", "atan2.default", "cos.default", "cosh.default", "erf.default",
    "exp.default", "exp2.default", "expm1.default", "lerp.Scalar", "log.default", "log1p.default", "log2.default", "mish.default",
    "nan_to_num.default", "pow.Tensor_Scalar", "reciprocal.default", "rsqrt.default", "rsub.Scalar", "sin.default", "sinh.default",
    "sqrt.default", "square.default", "sub.Scalar", "tan.default",
)  # fmt: skip

RULES: Rules = {
    **{f"aten.{name}": pointwise for name in _ANY},
    **{f"aten.{name}": smooth for name in _SMOOTH},
    "aten.polar.default": without_gradient,
    "aten.neg.default": linear,
    "aten._to_copy.default": linear,
    "aten._conj.default": pointwise,
    "aten.add.Tensor": sum_of,
    "aten.sub.Tensor": sum_of,
    "aten.mul.Tensor": product_of,
    "aten.mul.Scalar": product_of,
    "aten.div.Tensor": quotient,
    "aten.div.Scalar": quotient,
    "aten.tril.default": nothing,
    "aten.triu.default": nothing,
}
