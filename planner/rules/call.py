"""One operator call as a rule sees it: the op, its tensors and the degree of the mesh axis.

A rule is a function `Call -> Iterator[Strategy]`. It says which dims may be sliced and where a sum is left to do; it need not repeat the
all-replicated strategy nor check divisibility, which `planner.rules.table` does for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from planner.ir.graph import Attr, Op, Tensor, TensorArg
from planner.ir.placement import RP, Layout, R
from planner.ir.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Call:
    """`inputs` and `outputs` are the op's tensors in order; `degree` is the number of ranks along the axis."""

    op: Op
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    degree: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return tuple(tensor.shape for tensor in self.inputs)

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.outputs[0].shape

    @property
    def where(self) -> str:
        """` in MODULE`, for messages; empty outside modules."""
        return f" in {self.op.module}" if self.op.module else ""

    def arg(self, position: int, default: Attr = None) -> Attr:
        """The non-tensor argument at `position`, `default` where the call ends before it."""
        if position >= len(self.op.args):
            return default
        value = self.op.args[position]
        assert not isinstance(value, TensorArg), (self.op.target, position)
        return value  # type: ignore[return-value]  # tuples of TensorArg stand only where a rule does not read

    def integer(self, position: int, default: int = 0) -> int:
        """The integer argument at `position`."""
        value = self.arg(position, default)
        assert isinstance(value, int), (self.op.target, position, value)
        return value

    def dims(self, position: int, ndim: int) -> tuple[int, ...]:
        """The dims listed at `position`, none of them negative; all dims where the list is absent or empty."""
        value = self.arg(position)
        if isinstance(value, int) and not isinstance(value, bool):
            value = (value,)
        if value is None or value == ():
            return tuple(range(ndim))
        assert isinstance(value, tuple), (self.op.target, position, value)
        return tuple(sorted(dim % max(ndim, 1) for dim in value if isinstance(dim, int)))


Rule = Callable[[Call], Iterator[Strategy]]
Rules = Mapping[str, Rule]


def divided(inputs: tuple[Layout, ...], *outputs: Layout) -> Strategy:
    """A strategy in which every rank does its share of the work."""
    return Strategy(inputs, outputs, divided=True)


def repeated(inputs: tuple[Layout, ...], *outputs: Layout) -> Strategy:
    """A strategy in which every rank does all of the work."""
    return Strategy(inputs, outputs, divided=False)


def replicated(call: Call) -> Strategy:
    """Every rank computes the same, forward and backward."""
    return repeated((R,) * len(call.inputs), *(R,) * len(call.outputs))


def partial_gradient(call: Call) -> Strategy:
    """Every rank computes the same in forward; all gradients are summands (backward is linear in the gradient)."""
    return repeated((RP,) * len(call.inputs), *(RP,) * len(call.outputs))
