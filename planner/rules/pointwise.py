"""Elementwise operators with broadcasting.

A dim of the output may be split; an input that has the dim is split with it, one that is broadcast along it stays whole and its gradient,
summed over the split dim, is a sum over the ranks. Sums (`P`) pass only where the operator is linear: through both sides of an addition,
one side of a product, the numerator of a quotient.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import RP, Layout, P, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rules, divided, partial_gradient, repeated


def pointwise(call: Call) -> Iterator[Strategy]:
    """Any elementwise operator, linear or not."""
    for dim in range(len(call.out)):
        inputs = tuple(_aligned(shape, call.out, dim) for shape in call.shapes)
        yield divided(inputs, *(S(dim) for _ in call.outputs))


def _aligned(shape: tuple[int, ...], out: tuple[int, ...], dim: int) -> Layout:
    own = dim - (len(out) - len(shape))
    return S(own) if own >= 0 and shape[own] == out[dim] else RP


def linear(call: Call) -> Iterator[Strategy]:
    """Linear in its only tensor: negation, casts."""
    yield from pointwise(call)
    yield repeated((P,), P)
    yield partial_gradient(call)


def sum_of(call: Call) -> Iterator[Strategy]:
    """Additions: a sum over the ranks plus a sum over the ranks."""
    yield from pointwise(call)
    if len(call.inputs) == 2:
        yield repeated((P, P), P)
    yield partial_gradient(call)


def product_of(call: Call) -> Iterator[Strategy]:
    """Products: linear in each factor."""
    yield from pointwise(call)
    if len(call.inputs) == 1:
        yield repeated((P,), P)
    else:
        yield repeated((P, RP), P)
        yield repeated((RP, P), P)
    yield partial_gradient(call)


def quotient(call: Call) -> Iterator[Strategy]:
    """Quotients: linear in the numerator."""
    yield from pointwise(call)
    yield repeated((P,) if len(call.inputs) == 1 else (P, RP), P)
    yield partial_gradient(call)


_ANY = (
    "abs.default", "acos.default", "asin.default", "atan.default", "atan2.default", "bitwise_and.Tensor", "bitwise_not.default",
    "bitwise_or.Tensor", "ceil.default", "clamp.default", "clamp.Tensor", "clamp_max.default", "clamp_min.default", "cos.default",
    "cosh.default", "elu.default", "eq.Scalar", "eq.Tensor", "erf.default", "erfc.default", "exp.default", "exp2.default", "expm1.default",
    "floor.default", "floor_divide.default", "fmod.Scalar", "fmod.Tensor", "ge.Scalar", "ge.Tensor", "gelu.default", "gt.Scalar", "gt.Tensor",
    "hardsigmoid.default", "hardswish.default", "hardtanh.default", "isinf.default", "isnan.default", "le.Scalar", "le.Tensor",
    "leaky_relu.default", "lerp.Scalar", "lerp.Tensor", "log.default", "log10.default", "log1p.default", "log2.default",
    "log_sigmoid_forward.default", "logical_and.default", "logical_not.default", "logical_or.default", "lt.Scalar", "lt.Tensor",
    "masked_fill.Scalar", "masked_fill.Tensor", "maximum.default", "minimum.default", "mish.default", "nan_to_num.default", "ne.Scalar",
    "ne.Tensor", "polar.default", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "reciprocal.default", "relu.default",
    "remainder.Scalar", "remainder.Tensor", "round.default", "rsqrt.default", "rsub.Scalar", "sgn.default", "sigmoid.default",
    "sign.default", "silu.default", "sin.default", "sinh.default", "softplus.default", "sqrt.default", "square.default", "tan.default",
    "tanh.default", "tril.default", "triu.default", "where.self", "add.Scalar", "sub.Scalar",
    "zeros_like.default", "ones_like.default", "empty_like.default", "full_like.default",
)  # fmt: skip

RULES: Rules = {
    **{f"aten.{name}": pointwise for name in _ANY},
    "aten.neg.default": linear,
    "aten._conj.default": linear,
    "aten._to_copy.default": linear,
    "aten.add.Tensor": sum_of,
    "aten.sub.Tensor": sum_of,
    "aten.mul.Tensor": product_of,
    "aten.mul.Scalar": product_of,
    "aten.div.Tensor": quotient,
    "aten.div.Scalar": quotient,
}
