"""One recording for every batch size.

A training step is recorded at two batch sizes. Every dim, integer argument and FLOP count is then a function of the batch b, read off its
values v at the low batch l and u at the high batch h:

    v(b) = v                          if u = v              (independent of the batch)
    v(b) = v (b / l)^k                if u = v (h / l)^k    (k = 1 almost always; 2 for the logits of in-batch negatives)
    v(b) = v + (u - v)(b - l)/(h - l) otherwise             (affine: a batch and something beside it)

All of it in exact integers: a batch at which a value would not be whole is refused. Where the two recordings differ in structure, the
microbatch is fixed to the one that was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.errors import TraceError
from planner.ir.batch import InputInfo
from planner.ir.fingerprint import Row
from planner.ir.graph import Attr, Graph, Op, Tensor, TensorArg

_DEGREES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class GraphFamily:
    """A model's training step as a function of the microbatch size.

    `low` and `high` are recordings at two batch sizes; without `high` the microbatch is fixed to `low.batch` for the reason `fixed`.
    `rows` covers every parameter of the model, folded ones too. `inputs` are the tensors of the batch with the shapes of one sample
    (batch 1), or of `low` where the batch is fixed or one sample is not possible. `dtype` is that of the parameters as stored,
    `compute_dtype` that of forward and backward.
    """

    name: str
    low: Graph
    high: Graph | None
    rows: tuple[Row, ...]
    inputs: tuple[InputInfo, ...]
    dtype: str
    compute_dtype: str
    fixed: str = ""

    def at(self, batch: int) -> Graph:
        """The graph for microbatches of `batch` samples.

        Raises TraceError where the batch is fixed to another size, or a dim is not a whole number at this one.
        """
        if batch == self.low.batch:
            return self.low
        if self.high is None:
            raise TraceError(f"the microbatch of {self.name} is fixed to {self.low.batch}, not {batch}: {self.fixed}")
        if batch == self.high.batch:
            return self.high
        return _graph_at(self.low, self.high, batch=batch)

    @property
    def tokens_per_sample(self) -> int:
        """Elements per sample of the first integer input with at least two dims; 0 where inputs are not token ids."""
        for name in self.low.inputs:
            tensor = self.low.by_name[name]
            if tensor.dtype in ("int64", "int32") and len(tensor.shape) >= 2:
                return tensor.numel // self.low.batch
        return 0


def coverage(graph: Graph) -> float:
    """Fraction of the step's FLOPs that a formula gives, 0 to 1.

    The rest are the ops named in `graph.unmodelled`, weighed by what `Op.flop` assumes for them: two FLOP per parameter and token of an
    opaque module, one per element otherwise. The assumption may be too small, so coverage is a bound from above wherever it is below 1.
    """
    unknown = {target for target, _ in graph.unmodelled}
    weighed = [(op.target in unknown, op.flop * graph.multiplicity(op)) for op in graph.ops + graph.backward]
    total = sum(flop for _, flop in weighed)
    return 1.0 if total == 0 else sum(flop for is_unknown, flop in weighed if not is_unknown) / total


def structural_difference(low: Graph, high: Graph) -> str:
    """Why two recordings cannot be joined into a family, as half a sentence; empty if they can."""
    for left, right in zip(low.ops + low.backward, high.ops + high.backward, strict=False):
        if _skeleton(left) != _skeleton(right):
            return f"{left.target} in module {left.module!r} at batch {low.batch} is {right.target} at batch {high.batch}"
    if len(low.ops) != len(high.ops) or len(low.backward) != len(high.backward):
        counts = f"{len(low.ops) + len(low.backward)} operators at batch {low.batch} but {len(high.ops) + len(high.backward)}"
        return f"the training step has {counts} at batch {high.batch}"
    if low.regions != high.regions or low.parameters != high.parameters:
        return f"repeated blocks or parameters differ between batch {low.batch} and {high.batch}"
    if [_tensor_skeleton(tensor) for tensor in low.tensors] != [_tensor_skeleton(tensor) for tensor in high.tensors]:
        return f"tensors differ in rank or dtype between batch {low.batch} and {high.batch}"
    return ""


def value_at(low: int, high: int, *, batches: tuple[int, int], batch: int) -> int:
    """An integer at `batch`, from its values at `batches`; see the module docstring. Raises TraceError where it would not be whole."""
    if low == high:
        return low
    first, second = batches
    for degree in _DEGREES:
        if high * first**degree == low * second**degree:
            return _whole(low * batch**degree, first**degree, batch=batch)
    return low + _whole((high - low) * (batch - first), second - first, batch=batch)


def _whole(numerator: int, denominator: int, *, batch: int) -> int:
    quotient, remainder = divmod(numerator, denominator)
    if remainder:
        raise TraceError(f"a dim would be {numerator}/{denominator} at microbatch {batch}; choose another microbatch size")
    return quotient


def _graph_at(low: Graph, high: Graph, *, batch: int) -> Graph:
    batches = (low.batch, high.batch)

    def shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value_at(a, b, batches=batches, batch=batch) for a, b in zip(left, right, strict=True))

    def attr(left: Attr | TensorArg, right: Attr | TensorArg) -> Attr | TensorArg:
        if isinstance(left, tuple) and isinstance(right, tuple):
            return tuple(attr(a, b) for a, b in zip(left, right, strict=True))  # type: ignore[misc]
        if type(left) is int and type(right) is int:
            return value_at(left, right, batches=batches, batch=batch)
        return left

    def op(left: Op, right: Op) -> Op:
        args = tuple(attr(a, b) for a, b in zip(left.args, right.args, strict=True))  # type: ignore[arg-type]
        return replace(left, args=args, flop=value_at(left.flop, right.flop, batches=batches, batch=batch))

    def tensor(left: Tensor, right: Tensor) -> Tensor:
        return left if left.shape == right.shape else replace(left, shape=shape(left.shape, right.shape))

    return replace(
        low,
        ops=tuple(op(a, b) for a, b in zip(low.ops, high.ops, strict=True)),
        backward=tuple(op(a, b) for a, b in zip(low.backward, high.backward, strict=True)),
        tensors=tuple(tensor(a, b) for a, b in zip(low.tensors, high.tensors, strict=True)),
        batch=batch,
    )


def _skeleton(op: Op) -> tuple[object, ...]:
    return op.name, op.target, op.inputs, op.outputs, op.module, op.saved, op.border, op.origin, tuple(_form(arg) for arg in op.args)


def _form(arg: object) -> object:
    """An argument with its integers blanked."""
    if isinstance(arg, tuple):
        return tuple(_form(item) for item in arg)
    return int if type(arg) is int else arg


def _tensor_skeleton(tensor: Tensor) -> tuple[object, ...]:
    return tensor.name, len(tensor.shape), tensor.dtype, tensor.base, tensor.requires_grad


def flop_per_sample(graph: Graph) -> int:
    """FLOPs of one step over the samples of its batch, forward and backward, all copies of folded blocks."""
    return _total(graph, graph.ops + graph.backward) // graph.batch


def _total(graph: Graph, ops: Iterable[Op]) -> int:
    return sum(op.flop * graph.multiplicity(op) for op in ops)
