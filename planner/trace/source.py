"""What a model file provides, whichever way it was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`model()` builds the module on torch's current default device (meta, when planning); `inputs(batch_size)` a batch;
    `loss(output, batch)` the scalar mean; `weight(batch)` the number of contributing tokens or samples."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    loss: Callable[[Any, Any], Tensor]
    weight: Callable[[Any], float]
