"""A module without memory: every parameter, buffer and stray tensor of a model becomes a fake CPU tensor.

Fake tensors know shape, stride, dtype and storage identity, and hold no data, so a 405B model is recorded on a laptop. They pose as CPU
tensors because autograd and the operator kernels' shape functions are complete there; meta tensors lack some.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


def fake_mode() -> FakeTensorMode:
    """A mode that also takes the real tensors a forward makes for itself."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_tensor(tensor: torch.Tensor, *, mode: FakeTensorMode, dtype: torch.dtype) -> FakeTensor:
    """A dense fake CPU tensor of the same shape."""
    with mode, torch.device("cpu"):
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype)
    assert isinstance(empty, FakeTensor)
    return empty


def make_fake(model: nn.Module, *, mode: FakeTensorMode, compute_dtype: torch.dtype | None) -> tuple[str, ...]:
    """Replace the tensors of `model` in place; tied ones stay tied. Floating parameters take `compute_dtype`, as under FSDP2's mixed
    precision; buffers keep theirs.

    Returns a warning for each tensor that is neither a parameter nor a buffer: it would stay on the meta device at run time.
    """
    memo: dict[int, Any] = {}
    warnings: list[str] = []
    for fqn, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = _fake_parameter(parameter, memo=memo, mode=mode, compute_dtype=compute_dtype)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _memoized(buffer, memo=memo, mode=mode)
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [module._parameters[name] for name in module._flat_weights_names]
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                vars(module)[name] = _memoized(value, memo=memo, mode=mode)
                path = f"{fqn}.{name}" if fqn else name
                warnings.append(
                    f"{path} is a tensor but neither a parameter nor a buffer; use register_buffer({name!r}, ..., persistent=False)"
                )
    return tuple(warnings)


def fake_batch(batch: Any, *, mode: FakeTensorMode, compute_dtype: torch.dtype | None) -> Any:
    """The batch with every tensor faked, floating ones in `compute_dtype`."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.layout is not torch.strided:
            with mode:
                return mode.from_tensor(leaf)
        return fake_tensor(leaf, mode=mode, dtype=_dtype(leaf, compute_dtype))

    return pytree.tree_map(convert, batch)


def _dtype(tensor: torch.Tensor, compute_dtype: torch.dtype | None) -> torch.dtype:
    return compute_dtype if compute_dtype is not None and tensor.is_floating_point() else tensor.dtype


def _memoized(tensor: torch.Tensor, *, memo: dict[int, Any], mode: FakeTensorMode) -> Any:
    # the original is kept beside its fake: ids are only unique among the living
    if id(tensor) not in memo:
        memo[id(tensor)] = (tensor, fake_tensor(tensor, mode=mode, dtype=tensor.dtype))
    return memo[id(tensor)][1]


def _fake_parameter(parameter: nn.Parameter, *, memo: dict[int, Any], mode: FakeTensorMode, compute_dtype: torch.dtype | None) -> Any:
    if id(parameter) not in memo:
        fake = fake_tensor(parameter, mode=mode, dtype=_dtype(parameter, compute_dtype))
        memo[id(parameter)] = (parameter, nn.Parameter(fake, requires_grad=parameter.requires_grad))
    return memo[id(parameter)][1]
