"""What cannot be recorded is kept whole, as one `opaque` operator per module.

Fake tensors hold no data, so a branch on a value, `.item()` or `nonzero` stops a recording. The smallest module around the failure then becomes
one operator on its inputs and parameters, and with it every module of the same class. Its outputs are found by running the real module once
on random data where that takes less than 256 MiB, and are otherwise taken to look like its first floating input. Its work is taken to be that
of a linear map with its parameters,

    2 x parameters x rows of the first input,

backward twice that; it counts as unmodelled. A module that fails on real data as well is simply wrong, and its error is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from planner.errors import TraceError
from planner.trace.record import Recorder
from planner.trace.where import message_of, user_line
from planner.trace.whole import Like, Whole, run_whole

REAL_RUN_BYTES = 256 * 1024**2
"""Parameters and inputs of a module that may be made real for a moment."""

_NO_DATA = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)


def reason(error: BaseException) -> str:
    """Why a recording stopped, in the user's terms where torch's are its own."""
    if isinstance(error, DataDependentOutputException):
        return f"it reads a value out of a tensor (if, int(), .item(): {error.func})"
    if isinstance(error, DynamicOutputShapeException):
        return f"the shape of a result depends on data ({error.func})"
    return message_of(error)


class Untraceable(Exception):  # noqa: N818 (it never reaches a user: planner.trace.attempts turns it into a coarser graph or a TraceError)
    """The recording stopped inside module `fqn`."""

    def __init__(self, fqn: str, error: BaseException) -> None:
        super().__init__(fqn)
        self.fqn = fqn
        self.error = error


@dataclass(frozen=True, slots=True)
class Opaque:
    """A module kept whole because of `error`; `after_guess` if outputs of another module had been guessed before."""

    fqn: str
    error: BaseException
    after_guess: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What a recording has to keep whole, and the prefixes of repeated blocks it must not fold."""

    kept: tuple[Opaque, ...] = ()
    refused: frozenset[str] = frozenset()


def needs_data(error: BaseException) -> bool:
    """Whether the error comes from missing data, not from a mistake in the model."""
    return isinstance(error, _NO_DATA)


def opaque(module: nn.Module, kept: Opaque, recorder: Recorder) -> Callable[..., Any]:
    """A `forward` that records the module as one operator.

    Raises Untraceable for `kept.fqn` where its outputs cannot be found.
    """
    original = module.forward

    @wraps(original)  # a batch is matched with the signature of the model's own forward
    def forward(*args: Any, **kwargs: Any) -> Any:
        if recorder.paused:
            return original(*args, **kwargs)
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        recorder.paused = True
        output = _predicted(module, original, kept, args, kwargs)
        recorder.paused = False
        outputs, spec = pytree.tree_flatten(output)
        likes = tuple(Like(tuple(leaf.shape), leaf.dtype) for leaf in outputs if isinstance(leaf, torch.Tensor))
        whole = Whole("opaque", (), likes, (), _flop(module, leaves), modelled=False)
        made = iter(run_whole(recorder, whole, (*leaves, *module.parameters())))
        return pytree.tree_unflatten([next(made) if isinstance(leaf, torch.Tensor) else leaf for leaf in outputs], spec)

    return forward


def _flop(module: nn.Module, leaves: list[torch.Tensor]) -> int:
    first = next((leaf for leaf in leaves if leaf.is_floating_point() and leaf.dim() > 1), None)
    rows = first.numel() // max(1, first.shape[-1]) if first is not None else max((leaf.numel() for leaf in leaves), default=1)
    return int(2 * sum(parameter.numel() for parameter in module.parameters()) * rows)


def _predicted(module: nn.Module, forward: Callable[..., Any], kept: Opaque, args: Any, kwargs: Any) -> Any:
    """Outputs, real or fake, of which only shapes and dtypes are read."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    held = [*module.parameters(), *module.buffers(), *tensors]
    if sum(tensor.numel() * tensor.element_size() for tensor in held) <= REAL_RUN_BYTES:
        try:
            return _real_run(module, forward, args, kwargs)
        except (Exception, SystemExit):  # the user's code on random data may raise anything; on fake data it had failed already
            if not needs_data(kept.error) and not kept.after_guess:
                raise _reported(module, kept) from None
    if not needs_data(kept.error) and not kept.after_guess:
        raise _reported(module, kept)
    first = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    if first is None or not kept.fqn or not needs_data(kept.error):
        raise Untraceable(kept.fqn, kept.error)
    return first


def _reported(module: nn.Module, kept: Opaque) -> TraceError:
    place = user_line(kept.error) or kept.fqn or type(module).__name__
    return TraceError(f"{place}: forward fails: {message_of(kept.error)}")


def _real_run(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with _disable_current_modes(), torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        torch.manual_seed(0)
        with _real_tensors(module):
            args, kwargs = pytree.tree_map(lambda leaf: _real(leaf) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
            return forward(*args, **kwargs)


@contextmanager
def _real_tensors(module: nn.Module) -> Iterator[None]:
    memo: dict[int, Any] = {}
    replaced: list[tuple[dict[str, Any], str, Any]] = []

    def replace(table: dict[str, Any], name: str, new: Any) -> None:
        replaced.append((table, name, table[name]))
        table[name] = new

    try:
        for child in module.modules():
            for name, parameter in child._parameters.items():
                if parameter is not None:
                    real = memo.get(id(parameter))
                    memo[id(parameter)] = real = nn.Parameter(_real(parameter), requires_grad=False) if real is None else real
                    replace(child._parameters, name, real)
            for name, buffer in child._buffers.items():
                if buffer is not None:
                    replace(child._buffers, name, _real(buffer))
            if isinstance(child, nn.RNNBase):
                replace(vars(child), "_flat_weights", [getattr(child, name) for name in child._flat_weights_names])
        yield
    finally:
        for table, name, tensor in replaced:
            table[name] = tensor


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Random where it is floating, else zeros, which are legal indices."""
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)
