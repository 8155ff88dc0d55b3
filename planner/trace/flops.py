"""FLOPs of one operator call: a multiply-add counts 2, everything else 1 per element.

matmuls, convolutions       torch's own formulas (torch.utils.flop_counter)
attention                   4 b h s t d forward (two matmuls), 10 b h s t d backward (five: the scores are made again);
                            causal masks are counted in full, as MFU conventions do (PaLM, appendix B)
grouped matmul              2 m k n over all rows, whatever expert they belong to
pointwise, reductions       one per element of the larger side
normalisations, softmax     a small number per element (see _PER_ELEMENT)
views, copies, indexing     none: they move bytes
whole recurrent layers      planner.trace.whole
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

_MOVEMENT = frozenset(
    """_to_copy clone copy copy_ cat stack slice_backward select_backward slice_scatter select_scatter diagonal_scatter as_strided_scatter
    embedding index index_select index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put gather scatter scatter_ masked_select
    roll flip repeat repeat_interleave constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d pixel_shuffle pixel_unshuffle
    col2im im2col tril triu tril_ triu_ where empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones
    ones_like new_ones full full_like new_full fill fill_ zero zero_ zeros_like arange linspace scalar_tensor eye lift_fresh _efficientzerotensor
    new_full one_hot unfold_backward sort topk argsort argmax argmin max_pool2d_with_indices max_pool3d_with_indices searchsorted bucketize
    value_selecting_reduction_backward nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward _reshape_alias _unsafe_view
    upsample_nearest1d upsample_nearest2d upsample_nearest1d_backward upsample_nearest2d_backward rand randn randint randperm rand_like randn_like
    randint_like bernoulli bernoulli_ uniform uniform_ normal normal_ random_ exponential_ native_dropout_mask masked_scatter
    masked_scatter_backward resize_ set_ _sparse_coo_tensor_with_dims_and_tensors _indices _values _coalesced coalesce histc bincount
    t transpose permute view reshape expand squeeze unsqueeze slice select split unbind as_strided detach alias _nested_tensor_size
    embedding_renorm channel_shuffle _pad_circular block_diag combinations complex polar view_as_real view_as_complex contiguous
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward""".split()
)

_PER_ELEMENT = {
    "_softmax": 5, "_log_softmax": 5, "_softmax_backward_data": 4, "_log_softmax_backward_data": 4,
    "native_layer_norm": 8, "native_layer_norm_backward": 12, "native_group_norm": 8, "native_group_norm_backward": 12,
    "native_batch_norm": 8, "_native_batch_norm_legit": 8, "cudnn_batch_norm": 8, "native_batch_norm_backward": 12,
    "batch_norm_backward": 12, "_batch_norm_with_update": 8, "_fused_rms_norm": 5, "_fused_rms_norm_backward": 10,
    "native_dropout": 2, "native_dropout_backward": 2, "_weight_norm_interface": 3, "_weight_norm_interface_backward": 6,
    "embedding_dense_backward": 1, "scatter_add": 1, "scatter_add_": 1, "index_add": 1, "index_add_": 1, "scatter_reduce": 1,
    "cumsum": 1, "cumprod": 1, "logcumsumexp": 3, "_cdist_forward": 3, "linalg_vector_norm": 2, "logsumexp": 4,
    "avg_pool1d": 1, "avg_pool2d": 1, "avg_pool2d_backward": 1, "_adaptive_avg_pool2d": 1, "_adaptive_avg_pool2d_backward": 1,
    "max_pool2d": 1, "mse_loss": 3, "mse_loss_backward": 3, "smooth_l1_loss": 4, "smooth_l1_loss_backward": 4, "huber_loss": 4,
    "huber_loss_backward": 4, "binary_cross_entropy": 6, "binary_cross_entropy_backward": 6, "soft_margin_loss": 4,
    "binary_cross_entropy_with_logits": 6, "upsample_bilinear2d": 8, "upsample_bilinear2d_backward": 8, "upsample_bicubic2d": 32,
    "upsample_bicubic2d_backward": 32, "grid_sampler_2d": 12, "_index_put_accumulate": 1, "max": 1, "min": 1, "aminmax": 2,
    "renorm": 3, "_embedding_bag": 1, "_embedding_bag_dense_backward": 1, "glu": 4, "glu_backward": 6, "threshold_backward": 1,
    "prelu": 2, "_prelu_kernel": 2, "_prelu_kernel_backward": 3, "rrelu_with_noise": 2, "all": 1, "any": 1, "isin": 1, "cummax": 1,
    "trace": 1, "angle": 4, "std_mean": 4, "var_mean": 4,
}  # fmt: skip
"""FLOPs per element of the largest tensor involved, counted from the textbook definition of each operator."""


def flop_of(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int | None:
    """FLOPs of a call, None where no formula is known."""
    name, packet = func._opname, func.overloadpacket
    if func.is_view or name in _MOVEMENT:
        return _index_put_flop(name, args)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    if name in _FORMULAS:
        return _FORMULAS[name](args)
    if name in _PER_ELEMENT:
        return _PER_ELEMENT[name] * _largest((args, out))
    if torch.Tag.pointwise in func.tags or torch.Tag.reduction in func.tags:
        return _largest((args, out))
    if name.endswith("_") and name[:-1] in _PER_ELEMENT:
        return _PER_ELEMENT[name[:-1]] * _largest((args, out))
    return None


def element_flop(args: Sequence[Any], out: Any) -> int:
    """What is assumed where no formula is known: one FLOP per element."""
    return _largest((args, out))


def _largest(tree: Any) -> int:
    return max((leaf.numel() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)), default=0)


def _index_put_flop(name: str, args: Sequence[Any]) -> int:
    """`index_put(accumulate=True)` adds; everything else here only moves."""
    accumulates = name.startswith(("index_put", "_index_put", "_unsafe_index_put")) and len(args) > 3 and args[3] is True
    return int(args[2].numel()) if accumulates else 0


def _attention(args: Sequence[Any], *, matmuls: int, query: int) -> int:
    b, h, s, d = args[query].shape
    _, _, t, d_value = args[query + 2].shape
    return int(matmuls * b * h * s * t * (d + d_value))


def _attention_forward(args: Sequence[Any]) -> int:
    return _attention(args, matmuls=2, query=0)


def _attention_backward(args: Sequence[Any]) -> int:
    return _attention(args, matmuls=5, query=1)


def _grouped_mm(args: Sequence[Any]) -> int:
    """Rows times inner times columns: 2d x 3d, or the weight gradient's 2d x 2d."""
    left, right = args[0], args[1]
    if left.dim() == 2 and right.dim() == 3:
        return int(2 * left.shape[0] * left.shape[1] * right.shape[2])
    if left.dim() == 2:
        return int(2 * left.shape[0] * left.shape[1] * right.shape[1])
    return int(2 * left.shape[0] * left.shape[1] * left.shape[2] * right.shape[-1])


def _matrix_vector(args: Sequence[Any]) -> int:
    return int(2 * args[0].numel())


def _addmv(args: Sequence[Any]) -> int:
    return int(2 * args[1].numel())


def _outer_sum(args: Sequence[Any]) -> int:
    return int(2 * args[1].numel() * args[2].shape[-1])


def _sparse_mm(args: Sequence[Any]) -> int:
    """Two per stored element and output column; `_sparse_addmm(input, sparse, dense)`."""
    sparse, dense = (args[1], args[2]) if len(args) > 2 else (args[0], args[1])
    stored = sparse._nnz() if sparse.is_sparse else sparse.numel()
    return int(2 * stored * dense.shape[-1])


_FORMULAS: dict[str, Callable[[Sequence[Any]], int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention_forward,
    "_grouped_mm": _grouped_mm,
    "mv": _matrix_vector,
    "dot": _matrix_vector,
    "vdot": _matrix_vector,
    "addmv": _addmv,
    "addbmm": _outer_sum,
    "_sparse_addmm": _sparse_mm,
    "_sparse_mm": _sparse_mm,
}
