"""FLOPs of one operator call: a multiply-add counts 2, everything else 1 per element.

matmuls, convolutions       torch's own formulas (torch.utils.flop_counter)
attention                   4 b h s t d forward (two matmuls), 10 b h s t d backward (five: the scores are made again);
                            causal masks are counted in full, as MFU conventions do (PaLM, appendix B)
grouped matmul              2 m k n over all rows, whatever expert they belong to
pointwise, reductions       one per element of the result, of the argument
normalisations, softmax     a small number per element (planner.trace.flop_table)
views, copies, indexing     none: they move bytes
whole recurrent layers      planner.trace.whole
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2, prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from planner.trace.arguments import positional
from planner.trace.flop_table import BY_ARGUMENT, BY_OUTPUT, MOVEMENT, PER_ELEMENT


def flop_of(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int | None:
    """FLOPs of a call, None where no formula is known. A polynomial in the dims, so that FLOPs at another batch size follow from two."""
    name, packet = func._opname, func.overloadpacket
    if func.is_view or name in MOVEMENT:
        return _index_put_flop(name, args)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    if name in _FORMULAS:
        return _FORMULAS[name](args)
    functional = name.removesuffix("_")
    if functional in PER_ELEMENT:
        return PER_ELEMENT[functional] * _numel(_measured(functional, positional(func, args, kwargs), out))
    if torch.Tag.pointwise in func.tags:
        return _numel(out)
    if torch.Tag.reduction in func.tags:
        return _numel(args)
    return None


def element_flop(out: Any) -> int:
    """What is assumed where no formula is known: one FLOP per element of the results."""
    return sum(leaf.numel() for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor))


def _measured(name: str, values: Sequence[Any], out: Any) -> Any:
    """The tensor whose elements count."""
    return out if name in BY_OUTPUT else values[BY_ARGUMENT.get(name, 0)]


def _numel(tree: Any) -> int:
    """Elements of the first tensor."""
    return next((int(leaf.numel()) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)), 0)


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


def _fft(args: Sequence[Any]) -> int:
    """5 n log2 n real operations per transform of length n, Cooley and Tukey 1965; whole per element, so that the sum grows with the batch."""
    length = prod(args[0].shape[dim] for dim in args[1])
    return int(args[0].numel()) * round(5 * log2(max(2, length)))


_FORMULAS: dict[str, Callable[[Sequence[Any]], int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention_forward,
    "_fft_r2c": _fft,
    "_fft_c2r": _fft,
    "_fft_c2c": _fft,
    "_grouped_mm": _grouped_mm,
    "mv": _matrix_vector,
    "dot": _matrix_vector,
    "vdot": _matrix_vector,
    "addmv": _addmv,
    "addbmm": _outer_sum,
    "_sparse_addmm": _sparse_mm,
    "_sparse_mm": _sparse_mm,
}
