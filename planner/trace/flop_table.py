"""Operators whose FLOPs need no formula: those that only move bytes, and those with a constant number per element."""

MOVEMENT = frozenset({
    "_coalesced", "_efficientzerotensor", "_index_put_impl_", "_indices", "_nested_tensor_size", "_pad_circular", "_reshape_alias",
    "_sparse_coo_tensor_with_dims_and_tensors", "_to_copy", "_unsafe_index", "_unsafe_index_put", "_unsafe_view", "_values", "alias",
    "arange", "argmax", "argmin", "argsort", "as_strided", "as_strided_scatter", "bernoulli", "bernoulli_", "bincount", "block_diag",
    "bucketize", "cat", "clone", "coalesce", "col2im", "complex", "constant_pad_nd", "copy", "copy_", "detach", "diagonal_scatter",
    "embedding", "embedding_renorm", "empty", "empty_like", "empty_strided", "expand", "exponential_", "eye", "fill", "fill_", "flip",
    "full", "full_like", "gather", "histc", "im2col", "index", "index_put", "index_put_", "index_select", "lift_fresh", "linspace",
    "masked_scatter", "masked_scatter_backward", "masked_select", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices", "max_pool3d_with_indices_backward", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
    "nll_loss2d_backward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss_forward", "normal", "normal_", "one_hot", "ones",
    "ones_like", "permute", "pixel_shuffle", "pixel_unshuffle", "polar", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "random_", "randperm", "reflection_pad1d", "reflection_pad2d", "repeat", "repeat_interleave", "replication_pad2d",
    "reshape", "resize_", "roll", "scalar_tensor", "scatter", "scatter_", "searchsorted", "select", "select_backward", "select_scatter",
    "set_", "slice", "slice_backward", "slice_scatter", "sort", "split", "squeeze", "stack", "t", "topk", "transpose", "tril", "tril_",
    "triu", "triu_", "unbind", "unfold_backward", "uniform", "uniform_", "unsqueeze", "upsample_nearest1d", "upsample_nearest1d_backward",
    "upsample_nearest2d", "upsample_nearest2d_backward", "value_selecting_reduction_backward", "view", "view_as_complex", "view_as_real",
    "where", "zero", "zero_", "zeros", "zeros_like",
})  # fmt: skip
"""Create, copy, select or compare, without arithmetic on every element."""

PER_ELEMENT = {
    "_softmax": 5, "_safe_softmax": 5, "floor_divide": 1, "_log_softmax": 5, "_softmax_backward_data": 4, "_log_softmax_backward_data": 4,
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
    "renorm": 3, "_embedding_bag": 1, "_embedding_bag_dense_backward": 1, "_embedding_bag_backward": 1,
    "glu": 4, "glu_backward": 6, "threshold_backward": 1,
    "prelu": 2, "_prelu_kernel": 2, "_prelu_kernel_backward": 3, "rrelu_with_noise": 2, "all": 1, "any": 1, "isin": 1, "cummax": 1,
    "trace": 1, "angle": 4, "std_mean": 4, "var_mean": 4,
}  # fmt: skip
"""FLOPs per element, counted from the textbook definition of each operator. The elements are those of the first argument, but for:"""

BY_ARGUMENT = {
    "mse_loss_backward": 1, "smooth_l1_loss_backward": 1, "huber_loss_backward": 1, "binary_cross_entropy_backward": 1,
    "scatter_add": 3, "scatter_reduce": 3, "index_add": 3,
}  # fmt: skip
"""Position of the argument that counts: after a scalar gradient, or what is added to a larger tensor."""

BY_OUTPUT = frozenset({"upsample_bilinear2d", "upsample_bicubic2d", "grid_sampler_2d"})
"""Interpolations work per element of the result."""
