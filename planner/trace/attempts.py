"""Record a step; where it stops, keep the module whole and try again (planner.trace.coarse)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from planner.errors import TraceError
from planner.ir.graph import Graph
from planner.trace.blocks import Run
from planner.trace.coarse import Limits, Opaque, Untraceable, reason
from planner.trace.step import Subject, record_step
from planner.trace.where import user_line


def record_coarsely(subject: Subject, *, runs: tuple[Run, ...], limits: Limits) -> tuple[Graph, Limits]:
    """The graph, and `limits` with the modules that had to be kept whole and the runs that could not be folded.

    Raises TraceError, naming the user's line, if not even the model as a whole can be kept.
    """
    while True:
        try:
            with _quiet():
                graph, limits = record_step(subject, runs=runs, limits=limits)
        except Untraceable as stop:
            limits = replace(limits, kept=_coarser(stop, subject.model, limits.kept))
        else:
            return replace(graph, warnings=graph.warnings + _warnings(subject.model, limits.kept)), limits


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the traceback that torch logs when an operator's shape function fails: the error is reported in one line."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _coarser(stop: Untraceable, model: nn.Module, kept: tuple[Opaque, ...]) -> tuple[Opaque, ...]:
    """`kept` and one module more, with those of its class. A module that takes in others takes over the reason of the first of them."""
    known = {one.fqn for one in kept}
    fqn: str | None = stop.fqn
    while fqn is not None and (fqn in known or isinstance(model.get_submodule(fqn), nn.ModuleList | nn.ModuleDict)):
        fqn = _parent(fqn)
    if fqn is None:
        error = kept[0].error if kept else stop.error
        raise TraceError(f"{user_line(error) or type(model).__name__}: the training step cannot be recorded: {reason(error)}")
    names = [name for name in _alike(model, fqn) if name not in known]
    inner = [one for one in kept if any(_inside(one.fqn, name) for name in names)]
    error = inner[0].error if inner else stop.error
    return (*(one for one in kept if one not in inner), *(Opaque(name, error, bool(kept)) for name in names))


def _inside(fqn: str, outer: str) -> bool:
    return not outer or fqn.startswith(f"{outer}.")


def _parent(fqn: str) -> str | None:
    return fqn.rpartition(".")[0] if fqn else None


def _alike(model: nn.Module, fqn: str) -> list[str]:
    """The module and all others of its class: what one cannot do without data, none can. Torch's own classes fail for their arguments."""
    kind = type(model.get_submodule(fqn))
    if not fqn or kind.__module__.startswith("torch."):
        return [fqn]
    return [name for name, module in model.named_modules() if type(module) is kind and name]


def _warnings(model: nn.Module, kept: Sequence[Opaque]) -> tuple[str, ...]:
    """One line per cause."""
    causes: dict[int, list[Opaque]] = {}
    for one in kept:
        causes.setdefault(id(one.error), []).append(one)
    return tuple(_warning(model, ones) for ones in causes.values())


def _warning(model: nn.Module, ones: Sequence[Opaque]) -> str:
    first = ones[0]
    kind = type(model.get_submodule(first.fqn)).__name__
    more = f" and {len(ones) - 1} more" if len(ones) > 1 else ""
    where = user_line(first.error) or first.fqn
    why = reason(first.error)
    return f"{where}: {kind} ({first.fqn or 'the model'}{more}) is kept whole, with FLOPs after its parameters, because {why}"
