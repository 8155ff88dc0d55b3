"""A model's training step at two batch sizes, as one family of graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from planner.errors import ModelError, TraceError
from planner.ir.batch import InputInfo, Key
from planner.ir.family import GraphFamily, structural_difference, value_at
from planner.ir.fingerprint import Row, rows
from planner.ir.graph import DTYPE_BYTES, Graph
from planner.trace.attempts import record_coarsely
from planner.trace.blocks import Run, runs
from planner.trace.coarse import Limits
from planner.trace.fake import fake_batch, fake_mode, make_fake
from planner.trace.source import ModelSource
from planner.trace.step import Subject

BATCHES = (2, 4)
"""Batch sizes recorded; 1 would hide dims behind broadcasting."""


def trace(source: ModelSource, *, compute_dtype: str | None = None) -> GraphFamily:
    """Record forward, loss and backward of `source` on fake tensors.

    `compute_dtype` ("bfloat16") is that of floating parameters and inputs in forward and backward; None keeps the stored one. Repeated blocks
    are recorded once (planner.trace.fold). Raises ModelError or TraceError, in one line that names the user's file and line.
    """
    return trace_with(source, compute_dtype=compute_dtype, runs_of=runs)


def trace_with(source: ModelSource, *, compute_dtype: str | None = None, runs_of: Callable[[nn.Module], tuple[Run, ...]]) -> GraphFamily:
    """`trace` with another finder of repeated blocks; `lambda model: ()` records every block."""
    recording = _recording(source, compute_dtype=compute_dtype, runs_of=runs_of)
    low, low_inputs, limits = recording.at(BATCHES[0], Limits())
    high, high_inputs, fixed, low = _high(recording, low, limits)
    dtype = _main_dtype(recording.rows)
    return GraphFamily(
        name=source.name,
        low=low,
        high=high,
        rows=recording.rows,
        inputs=_at_one(low_inputs, high_inputs) if high is not None else low_inputs,
        dtype=dtype,
        compute_dtype=compute_dtype or dtype,
        fixed=fixed,
    )


def record_at(source: ModelSource, *, batch: int, compute_dtype: str | None = None) -> Graph:
    """The graph for `batch` samples from a recording of its own; `GraphFamily.at` gives the same graph from two."""
    graph, _, _ = _recording(source, compute_dtype=compute_dtype, runs_of=runs).at(batch, Limits())
    return graph


@dataclass(frozen=True, slots=True)
class _Recording:
    """A model without memory, ready to be recorded at any batch size."""

    source: ModelSource
    model: nn.Module
    dtype: torch.dtype | None
    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    mode: FakeTensorMode
    warnings: tuple[str, ...]

    def at(self, batch: int, limits: Limits) -> tuple[Graph, tuple[InputInfo, ...], Limits]:
        fake = fake_batch(self._batch(batch), mode=self.mode, compute_dtype=self.dtype)
        stored = {row.fqn: row.dtype for row in self.rows}
        subject = Subject(self.model, fake, batch, self.source.loss, self.mode, stored)
        graph, limits = record_coarsely(subject, runs=self.runs, limits=limits)
        return replace(graph, warnings=self.warnings + graph.warnings), _input_infos(fake), limits

    def _batch(self, batch: int) -> Any:
        """A batch, if possible made of fake tensors in the first place: a real one may be large."""
        try:
            with self.mode, torch.device("cpu"):
                return self.source.inputs(batch)
        except Exception:  # it may need data, for instance to pad; whatever is wrong with it shows again on the next line
            return self.source.inputs(batch)


def _recording(source: ModelSource, *, compute_dtype: str | None, runs_of: Callable[[nn.Module], tuple[Run, ...]]) -> _Recording:
    dtype = _dtype(compute_dtype)
    with torch.device("meta"):
        model = source.model()
    _refuse_compiled(model)
    identities = _rows(model)
    mode = fake_mode()
    warnings = make_fake(model, mode=mode, compute_dtype=dtype)
    return _Recording(source, model, dtype, runs_of(model), identities, mode, warnings)


def _refuse_compiled(model: nn.Module) -> None:
    for fqn, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            place = f"module {fqn}" if fqn else "the model"
            raise TraceError(f"{place} is compiled ({type(module).__name__}); plan the module it was made from")


def _high(recording: _Recording, low: Graph, limits: Limits) -> tuple[Graph | None, tuple[InputInfo, ...], str, Graph]:
    """The second recording or the reason why the batch is fixed, and the first one, anew if the second is coarser."""
    try:
        high, inputs, coarser = recording.at(BATCHES[1], limits)
    except ModelError as error:
        return None, (), f"at batch {BATCHES[1]}: {error}", low
    if coarser != limits:
        low, _, _ = recording.at(BATCHES[0], coarser)
    difference = structural_difference(low, high)
    return (None, (), difference, low) if difference else (high, inputs, "", low)


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or name not in DTYPE_BYTES:
        raise TraceError(f"compute dtype {name!r} is not one of {', '.join(DTYPE_BYTES)}")
    return dtype


def _rows(model: nn.Module) -> tuple[Row, ...]:
    named = list(model.named_parameters(remove_duplicate=False))
    lazy = [fqn for fqn, parameter in named if is_lazy(parameter)]
    if lazy:
        raise TraceError(f"parameter {lazy[0]} has no shape yet; give lazy modules their sizes (nn.Linear in place of nn.LazyLinear)")
    return rows((fqn, tuple(p.shape), str(p.dtype).removeprefix("torch."), id(p)) for fqn, p in named)


def _main_dtype(identities: Iterable[Row]) -> str:
    """The dtype that most parameter elements have."""
    elements: Counter[str] = Counter()
    for row in identities:
        elements[row.dtype] += torch.Size(row.shape).numel()
    return elements.most_common(1)[0][0] if elements else "float32"


def _input_infos(batch: Any) -> tuple[InputInfo, ...]:
    leaves, _ = pytree.tree_flatten_with_path(batch)
    return tuple(
        InputInfo(tuple(_key(part) for part in path), tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for path, leaf in leaves
        if isinstance(leaf, torch.Tensor)
    )


def _key(part: Any) -> Key:
    key = part.idx if hasattr(part, "idx") else part.key if hasattr(part, "key") else part.name
    return key if isinstance(key, int) else str(key)


def _at_one(low: tuple[InputInfo, ...], high: tuple[InputInfo, ...]) -> tuple[InputInfo, ...]:
    """Shapes for one sample; those of `low` where one sample would not be whole."""
    try:
        return tuple(
            replace(a, shape=tuple(value_at(x, y, batches=BATCHES, batch=1) for x, y in zip(a.shape, b.shape, strict=True)))
            for a, b in zip(low, high, strict=True)
        )
    except TraceError:
        return low
