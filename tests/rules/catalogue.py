"""Concrete operator calls on which the rule table is held against DTensor. All dims that may be split are divisible by 4."""

from __future__ import annotations

import torch

from planner.ir.graph import TensorArg
from tests.rules.oracle import Case, Spec

A, B, C, D, E = (TensorArg(index) for index in range(5))
F = Spec
END = 2**63 - 1
BOOL, COMPLEX = torch.bool, torch.complex128


def unary(target: str, *rest: object, shape: tuple[int, ...] = (4, 8, 16), positive: bool = False, **kwargs: object) -> Case:
    return Case(f"aten.{target}", (F(shape, positive=positive),), (A, *rest), kwargs)


def binary(target: str, left: Spec, right: Spec, *rest: object) -> Case:
    return Case(f"aten.{target}", (left, right), (A, B, *rest))


def frozen(*shape: int, positive: bool = False) -> Spec:
    return F(shape, grad=False, positive=positive)


EINSUM = (
    binary("mm.default", F((8, 16)), F((16, 4))),
    binary("mm.default", frozen(8, 16), F((16, 4))),
    binary("mm.default", F((8, 16)), frozen(16, 4)),
    binary("mm.default", F((6, 5)), F((5, 4))),
    Case("aten.addmm.default", (F((4,)), F((8, 16)), F((16, 4))), (A, B, C)),
    Case("aten.addmm.default", (frozen(4), F((8, 16)), F((16, 4))), (A, B, C)),
    binary("dot.default", F((8,)), F((8,))),
    binary("mv.default", F((8, 16)), F((16,))),
    binary("bmm.default", F((4, 8, 16)), F((4, 16, 4))),
    Case("aten.baddbmm.default", (F((4, 1, 4)), F((4, 8, 16)), F((4, 16, 4))), (A, B, C)),
    Case("aten.baddbmm.default", (F((4, 8, 4)), F((4, 8, 16)), F((4, 16, 4))), (A, B, C)),
)

_UNARY = (
    "abs", "ceil", "cos", "elu", "erf", "exp", "expm1", "floor", "gelu", "isinf", "isnan", "leaky_relu", "mish", "neg", "relu", "round",
    "sigmoid", "sign", "silu", "sin", "softplus", "square", "tanh", "zeros_like", "ones_like", "empty_like",
    "celu", "selu", "atan", "cosh", "sinh", "exp2", "tan", "nan_to_num",
)  # fmt: skip
_POSITIVE = ("log", "log2", "log1p", "reciprocal", "rsqrt", "sqrt")
_WITH_NUMBER = (
    "add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar",
    "pow.Tensor_Scalar", "remainder.Scalar", "clamp_min.default", "clamp_max.default", "full_like.default",
    "eq.Scalar", "ne.Scalar", "gt.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar",
)  # fmt: skip

POINTWISE = (
    *(unary(f"{name}.default", shape=(4, 8)) for name in _UNARY),
    *(unary(f"{name}.default", shape=(4, 8), positive=True) for name in _POSITIVE),
    *(unary(name, 2.0, shape=(4, 8)) for name in _WITH_NUMBER),
    unary("gelu.default", approximate="tanh"),
    unary("clamp.default", -0.5, 0.5),
    unary("_to_copy.default", dtype=torch.float32),
    Case("aten.pow.Scalar", (F((4, 8)),), (2.0, A)),
    Case("aten._conj.default", (F((4, 8), dtype=COMPLEX),), (A,)),
    *(binary(f"{name}.Tensor", F((4, 8, 16)), F((4, 8, 16))) for name in ("add", "sub", "mul")),
    *(binary(f"{name}.Tensor", F((4, 8, 16)), F((16,), positive=True)) for name in ("add", "mul", "div")),
    *(binary(f"{name}.Tensor", F((4, 8, 16)), F((4, 8, 1), positive=True)) for name in ("sub", "mul", "div")),
    *(binary(f"{name}.Tensor", F((4, 8, 16)), frozen(8, 16, positive=True)) for name in ("add", "mul", "div")),
    binary("add.Tensor", F((8, 16)), F((4, 8, 16))),
    binary("mul.Tensor", F((4, 8, 16)), F((4, 1, 16))),
    binary("mul.Tensor", F((4, 8, 4, 8), dtype=COMPLEX), F((1, 8, 1, 8), grad=False, dtype=COMPLEX)),
    binary("div.Tensor", F((4, 8)), frozen(positive=True)),
    *(binary(f"{name}.default", F((4, 8)), F((4, 8))) for name in ("maximum", "minimum")),
    binary("pow.Tensor_Tensor", F((4, 8), positive=True), F((4, 8))),
    binary("atan2.default", F((4, 8)), F((4, 8))),
    Case("aten.addcmul.default", (F((4, 8)), F((4, 8)), F((4, 8))), (A, B, C)),
    Case("aten.where.ScalarOther", (F((4, 8), dtype=BOOL), F((4, 8))), (A, B, 0.0)),
    binary("lerp.Scalar", F((4, 8)), F((4, 8)), 0.3),
    binary("polar.default", frozen(4, 8, positive=True), frozen(4, 8)),
    binary("masked_fill.Scalar", F((4, 4, 8, 8)), F((8, 8), dtype=BOOL), -1e9),
    Case("aten.where.self", (F((4, 8, 16), dtype=BOOL), F((4, 8, 16)), F(())), (A, B, C)),
    Case("aten.where.self", (F((8, 16), dtype=BOOL), F((4, 8, 16)), F((4, 8, 16))), (A, B, C)),
    *(binary(f"{name}.Tensor", F((4, 8), high=3), F((8,), high=3)) for name in ("eq", "ne", "gt", "ge", "lt", "le")),
    *(binary(name, F((4, 8), dtype=BOOL), F((4, 8), dtype=BOOL)) for name in ("bitwise_and.Tensor", "bitwise_or.Tensor")),
    *(binary(name, F((4, 8), dtype=BOOL), F((4, 8), dtype=BOOL)) for name in ("logical_and.default", "logical_or.default")),
    *(Case(f"aten.{name}.default", (F((4, 8), dtype=BOOL),), (A,)) for name in ("bitwise_not", "logical_not")),
    binary("floor_divide.default", F((4, 8), high=9), F((), grad=False, positive=True)),
    unary("tril.default", shape=(4, 8, 8)),
    unary("triu.default", shape=(8, 8)),
)

VIEW = (
    unary("view.default", [32, 16]),
    unary("view.default", [4, 8, 4, 4]),
    unary("view.default", [4, 8, 2, 8]),
    unary("view.default", [4, 8, 4, 2, 2]),
    unary("view.default", [4, 128]),
    unary("view.default", [64, 8]),
    unary("view.default", [1, 4, 8, 16]),
    unary("view.default", [8, 16], shape=(1, 8, 16)),
    unary("view.default", [1, 8, 16], shape=(8, 16)),
    unary("view.default", [2, 4, 16], shape=(8, 16)),
    unary("view.default", [3, 2, 8], shape=(6, 8)),
    unary("view.default", [4, 8, 16], shape=(4, 8, 4, 4)),
    unary("view.default", [4, 8, 12, 4], shape=(4, 8, 4, 3, 4)),
    unary("view.default", [4, 8, 4], shape=(4, 8, 4, 1)),
    unary("_unsafe_view.default", [4, 8, 16], shape=(32, 16)),
    unary("_unsafe_view.default", [4, 8, 16], shape=(4, 8, 4, 4)),
    unary("reshape.default", [32, 16]),
    unary("permute.default", [2, 0, 1]),
    unary("transpose.int", 1, 2),
    unary("transpose.int", -1, -2),
    unary("t.default", shape=(8, 16)),
    unary("t.default", shape=(8,)),
    unary("unsqueeze.default", 1),
    unary("unsqueeze.default", -1),
    unary("squeeze.dim", 1, shape=(4, 1, 8)),
    unary("squeeze.dim", 1, shape=(4, 4, 8)),
    unary("squeeze.default", shape=(4, 1, 8)),
    unary("squeeze.dims", [1, 2], shape=(4, 1, 1, 8)),
    unary("expand.default", [4, 8, 4, 3, 4], shape=(4, 8, 4, 1, 4)),
    unary("expand.default", [4, 8, 16], shape=(8, 16)),
    unary("expand.default", [4, 8, 16]),
    unary("expand.default", [-1, -1, 16], shape=(4, 8, 1)),
    unary("slice.Tensor", 2, 0, 8),
    unary("slice.Tensor", 1, 0, END),
    unary("slice.Tensor", 2, 8, END),
    unary("slice.Tensor", 2, 0, END, 2),
    unary("select.int", 1, 0),
    unary("select.int", 0, 0),
    unary("unbind.int", 1, shape=(4, 2, 8)),
    unary("split.Tensor", 8, -1),
    unary("split.Tensor", 4, 1),
    unary("split_with_sizes.default", [4, 12], -1),
    unary("chunk.default", 2, -1),
    Case("aten.cat.default", (F((4, 8, 8)), F((4, 8, 8))), ([A, B], -1)),
    Case("aten.cat.default", (F((4, 1, 8)), F((4, 7, 8))), ([A, B], 1)),
    Case("aten.stack.default", (F((4, 8)), F((4, 8))), ([A, B], -1)),
    Case("aten.stack.default", (F((4, 8)), F((4, 8))), ([A, B], 1)),
    *(unary(f"{name}.default") for name in ("clone", "contiguous", "alias", "detach", "lift_fresh")),
    unary("view_as_complex.default", shape=(4, 8, 4, 2)),
    Case("aten.view_as_real.default", (F((4, 8, 4), dtype=COMPLEX),), (A,)),
    unary("flip.default", [1]),
    unary("roll.default", [1], [1]),
    unary("constant_pad_nd.default", [0, 4]),
    unary("repeat.default", [1, 2, 1]),
    unary("repeat.default", [2, 1, 1, 1]),
)

REDUCE = (
    unary("sum.default"),
    unary("mean.default"),
    unary("sum.dim_IntList", [1], False),
    unary("sum.dim_IntList", [-1], True),
    unary("sum.dim_IntList", [0, 1], False),
    unary("mean.dim", [-1], True),
    unary("mean.dim", [1], False),
    unary("mean.dim", [2, 3], False, shape=(4, 8, 4, 4)),
    *(unary(f"{name}.default", [-1], True) for name in ("amax", "amin")),
    unary("logsumexp.default", [-1]),
    *(unary(f"{name}.dim", -1) for name in ("max", "min")),
    unary("max.dim", 1, True),
    *(unary(f"{name}.default", -1) for name in ("argmax", "argmin")),
    unary("var.correction", [-1]),
    unary("var_mean.correction", [-1]),
    unary("linalg_vector_norm.default", 2, [-1], True),
    unary("_softmax.default", -1, False),
    unary("_softmax.default", 1, False),
    unary("_safe_softmax.default", -1),
    unary("cumsum.default", 1),
    unary("topk.default", 2, -1),
    unary("topk.default", 2),
    unary("sort.default", -1),
    unary("argsort.default", -1),
    unary("logcumsumexp.default", 1),
    unary("std.correction", [-1]),
    Case("aten.any.default", (F((4, 8), dtype=BOOL),), (A,)),
    Case("aten.all.default", (F((4, 8), dtype=BOOL),), (A,)),
    Case("aten.any.dim", (F((4, 8), dtype=BOOL),), (A, 1)),
    Case("aten.all.dim", (F((4, 8), dtype=BOOL),), (A, 1)),
    Case("aten.cumsum.default", (F((4, 8), high=3),), (A, -1)),
)

NORM = (
    Case("aten.native_layer_norm.default", (F((4, 8, 16)), F((16,)), F((16,))), (A, [16], B, C, 1e-5)),
    Case("aten.native_layer_norm.default", (F((4, 8, 16)), F((16,))), (A, [16], B, None, 1e-5)),
    Case("aten.native_layer_norm.default", (F((4, 8, 16)),), (A, [16], None, None, 1e-5)),
    Case("aten.native_layer_norm.default", (F((8, 16)), frozen(16), frozen(16)), (A, [16], B, C, 1e-5)),
    Case("aten._fused_rms_norm.default", (F((4, 8, 16)), F((16,))), (A, [16], B, 1e-5)),
    Case("aten._fused_rms_norm.default", (F((4, 8, 4, 4)), F((4,))), (A, [4], B, 1e-5)),
    Case(
        "aten.native_batch_norm.default",
        (F((4, 8, 4)), F((8,)), F((8,)), frozen(8), frozen(8, positive=True)),
        (A, B, C, D, E, True, 0.1, 1e-5),
    ),
)

_FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
_QUERY = F((4, 8, 4, 16))
ATTENTION = (
    *(Case(_FLASH, (_QUERY, F((4, heads, 4, 16)), F((4, heads, 4, 16))), (A, B, C, 0.0, True)) for heads in (8, 4, 2)),
    *(
        Case(_FLASH, (_QUERY, _QUERY, _QUERY, frozen(*mask)), (A, B, C, 0.0, False), {"attn_mask": D})
        for mask in ((4, 1, 4, 4), (1, 8, 4, 4), (4, 4))
    ),
)

EMBEDDING = (
    binary("embedding.default", F((16, 8)), F((4, 8), high=16)),
    binary("embedding.default", F((16, 8)), F((8,), high=16)),
    binary("embedding.default", frozen(16, 8), F((4, 8), high=16)),
    binary("embedding.default", F((15, 8)), F((4, 8), high=15)),
)

LOSS = (
    unary("_log_softmax.default", 1, False, shape=(8, 16)),
    unary("_log_softmax.default", 2, False),
    *(Case("aten.nll_loss_forward.default", (F((8, 16)), F((8,), high=16)), (A, B, None, reduction, -100)) for reduction in (0, 1, 2)),
    *(binary("mse_loss.default", F((4, 8)), frozen(4, 8), reduction) for reduction in (0, 1, 2)),
    *(binary(f"{name}.default", F((4, 8)), frozen(4, 8), reduction) for name in ("huber_loss", "smooth_l1_loss") for reduction in (0, 1, 2)),
    *(
        binary("binary_cross_entropy_with_logits.default", F((4, 8)), frozen(4, 8, positive=True), None, None, reduction)
        for reduction in (0, 1, 2)
    ),
)

CONV = (
    Case("aten.convolution.default", (F((4, 8, 8, 8)), F((4, 8, 3, 3)), F((4,))), (A, B, C, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    Case("aten.convolution.default", (F((4, 8, 8, 8)), F((4, 8, 4, 4))), (A, B, None, [4, 4], [0, 0], [1, 1], False, [0, 0], 1)),
    Case("aten.convolution.default", (F((4, 8, 8)), F((4, 8, 3))), (A, B, None, [1], [1], [1], False, [0], 1)),
    unary("max_pool2d_with_indices.default", [2, 2], [2, 2], shape=(4, 8, 8, 8)),
    unary("_adaptive_avg_pool2d.default", [2, 2], shape=(4, 8, 8, 8)),
    unary("upsample_bilinear2d.default", [16, 16], False, shape=(4, 8, 8, 8)),
    unary("upsample_nearest2d.default", [16, 16], 2.0, 2.0, shape=(4, 8, 8, 8)),
)

SCATTER = (
    Case("aten.gather.default", (F((4, 8, 16)), F((4, 8, 2), high=16)), (A, 2, B)),
    Case("aten.gather.default", (F((8, 16), high=9), F((4, 16), high=8)), (A, 0, B)),
    Case("aten.scatter.src", (frozen(8, 16), F((8, 2), high=16), F((8, 2))), (A, 1, B, C)),
    Case("aten.scatter.value", (frozen(8, 16), F((8, 2), high=16)), (A, 1, B, 1.0)),
    Case("aten.scatter_add.default", (F((8, 16)), F((8, 4), high=16), F((8, 4))), (A, 1, B, C)),
    Case("aten.index_select.default", (F((8, 16)), F((4,), high=8)), (A, 0, B)),
    Case("aten.index_add.default", (F((8, 16)), F((4,), high=8), F((4, 16))), (A, 0, B, C)),
    Case("aten.one_hot.default", (F((4, 8), high=8),), (A, 8)),
    Case("aten.bucketize.Tensor", (frozen(4, 8), frozen(4)), (A, B)),
    Case("aten.index.Tensor", (F((8, 16)), F((4,), high=8)), (A, [B])),
    Case("aten.index.Tensor", (F((4, 8, 16)), F((4,), high=8)), (A, [None, B])),
)

CREATE = (
    *(unary(f"{name}.default", [4, 8]) for name in ("new_ones", "new_zeros", "new_empty")),
    unary("new_full.default", [16], 2.0),
    Case("aten.new_ones.default", (F((4, 8), high=3),), (A, [4, 8])),
)

DROPOUT = (
    *(unary(f"{name}.default") for name in ("rand_like", "randn_like")),
    unary("native_dropout.default", 0.0, True),
    Case("aten.bernoulli_.float", (frozen(4, 8),), (A, 1.0)),
)


CASES = (*EINSUM, *POINTWISE, *VIEW, *REDUCE, *NORM, *ATTENTION, *EMBEDDING, *LOSS, *CONV, *SCATTER, *CREATE, *DROPOUT)
SELECTED = (EINSUM[0], EINSUM[4], *VIEW[1:6], VIEW[11], *ATTENTION[:3], EMBEDDING[0], NORM[0], REDUCE[3], LOSS[2], SCATTER[0])
"""Enough to see a second degree: products, reshapes into heads, grouped queries, lookups, norms, losses."""
