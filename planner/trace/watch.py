"""Does a block read its own number? Decided by watching, not by reading code.

While a first copy runs, the attributes that differ between copies only by holding the copy's number (`layer_idx`) are turned into
properties of a throw-away subclass. If none is read, the other copies, whose code and remaining attributes are equal, cannot behave
differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from planner.trace.fold import Folder


@contextmanager
def watched(model: nn.Module, folder: Folder) -> Iterator[None]:
    """Report to `folder.number_reads` every read of a block's own number during a recording."""
    changed: list[tuple[nn.Module, type]] = []
    try:
        for fqn, run in folder.run_of.items():
            for module in model.get_submodule(fqn).modules() if run.indices else ():
                names = run.indices & vars(module).keys()
                if names:
                    changed.append((module, type(module)))
                    module.__class__ = _watching(type(module), names, folder=folder, prefix=run.prefix)
        yield
    finally:
        for module, original in changed:
            module.__class__ = original


def _watching(original: type, names: frozenset[str], *, folder: Folder, prefix: str) -> type:
    return type(original.__name__, (original,), {name: _property(name, folder=folder, prefix=prefix) for name in names})


def _property(name: str, *, folder: Folder, prefix: str) -> property:
    def read(module: nn.Module) -> Any:
        folder.number_reads.add(prefix)
        return vars(module)[name]

    return property(read)
