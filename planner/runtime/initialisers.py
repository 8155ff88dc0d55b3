"""Initialisers that a model keeps for its submodules: `model._init_weights(module)`, the convention of transformers and many others.

Where a module has one, it has the last word over everything inside the module, inner modules first, as after
`model.apply(model._init_weights)`. It is called for modules all of whose values are new: what has values keeps them, also if it is in
another unit that was filled before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

Initialiser = Callable[[nn.Module], Any]
LENT = "as_original"
"""A method of a module that stands for a cut one: it runs a function on what looks like the original."""


def initialisers(model: nn.Module) -> tuple[tuple[str, Initialiser], ...]:
    """The initialisers of `model` and of the models inside it, by FQN, outer ones first."""
    named = ((fqn, getattr(module, "_init_weights", None)) for fqn, module in model.named_modules())
    return tuple((fqn, method) for fqn, method in named if callable(method) and takes_a_module(method))


def takes_a_module(method: Callable[..., Any]) -> bool:
    """Whether `method` can be called with one argument."""
    try:
        inspect.signature(method).bind(None)
    except TypeError:
        return False
    return True


def innermost(found: tuple[tuple[str, Initialiser], ...], fqn: str) -> Initialiser | None:
    """The initialiser of the innermost module around `fqn` that has one."""
    around = [method for outer, method in found if not outer or fqn == outer or fqn.startswith(f"{outer}.")]
    return around[-1] if around else None


def apply(initialise: Initialiser, module: nn.Module) -> None:
    """Runs `initialise` on `module`, or on what it stands for."""
    lent: Callable[[Initialiser], None] | None = getattr(module, LENT, None)
    if lent is None:
        initialise(module)
    else:
        lent(initialise)
