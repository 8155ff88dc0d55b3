"""The operator graph of one training step.

A `Graph` holds the forward ops in topological order and, apart from them, the backward ops, each with the forward op it belongs to. Edges
are tensor names. Three kinds of op are ours:

    border   the identity at a module's input or output; `border` names it. Redistributions happen only here.
    moe, lstm, ...   an operator kept whole (see planner/trace), with the FLOPs of its parts

all others carry torch's name (`aten.mm.default`). A `Region` says that the ops of one block stand for several equal blocks in a row:
the graph then holds only the first copy (folded), and copy k reads what copy k-1 wrote (`carried`).

Sizes are in bytes, work in FLOP (a multiply-add counts 2), for one microbatch of `batch` samples on one device, unsharded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

Attr = int | float | bool | str | None | tuple["Attr", ...]
"""A non-tensor argument, made hashable."""

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph.

    `base` names the tensor that owns the storage: the tensor itself, or the one it is a view of.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    base: str
    requires_grad: bool

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Op:
    """One operator.

    `args` are the positional arguments with every tensor replaced by `TensorArg(index into inputs)`; a rule reads dims and sizes there,
    with default values filled in. `module` is the FQN of the innermost module. `origin` is empty for a forward op and names the forward op
    in a backward one. `saved` are the tensors that autograd keeps for the backward of this op.
    """

    name: str
    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    args: tuple[Attr | TensorArg | tuple[TensorArg, ...], ...]
    module: str
    flop: int
    saved: tuple[str, ...] = ()
    border: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class TensorArg:
    """Stands for input number `index` among an op's arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. `fqns` holds all its names; the first one is canonical, more than one means it is tied. `tensor` is its name in
    the graph."""

    tensor: str
    fqns: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    trainable: bool

    @property
    def fqn(self) -> str:
        return self.fqns[0]

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer; a non-persistent one is absent from the state dict and must be rebuilt after a start on the meta device."""

    tensor: str
    fqn: str
    shape: tuple[int, ...]
    dtype: str
    persistent: bool


@dataclass(frozen=True, slots=True)
class Region:
    """Equal blocks called one after the other. The graph holds the ops and parameters of the first, `copies[0]`, only.

    `glob` names all of them ("layers.*"). `ops` are the names of the body's forward ops. `carried` pairs (read, written): in the first copy
    the body reads `read`, in every later one the tensor that the copy before wrote as `written`; consumers after the region see the last
    copy's `written`. Every other input of the body is the same tensor for all copies. `inner` are ops of the body that the last copy does not
    run: what it does instead stands outside the region.
    """

    glob: str
    copies: tuple[str, ...]
    ops: tuple[str, ...]
    carried: tuple[tuple[str, str], ...]
    inner: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.copies)


@dataclass(frozen=True)
class Graph:
    """One training step; see the module docstring. `loss` is the scalar that backward starts from, `outputs` are the model's outputs.

    `batch` is the number of samples it was recorded with. `unmodelled` counts op targets whose FLOPs are unknown.
    """

    ops: tuple[Op, ...]
    backward: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    loss: str
    batch: int
    regions: tuple[Region, ...] = ()
    unmodelled: tuple[tuple[str, int], ...] = ()
    warnings: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """The forward op that writes each tensor; parameters, buffers and inputs have none."""
        return {name: op for op in self.ops for name in op.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[Op, int], ...]]:
        """The forward ops that read each tensor, with the input index."""
        readers: dict[str, list[tuple[Op, int]]] = {}
        for op in self.ops:
            for index, name in enumerate(op.inputs):
                readers.setdefault(name, []).append((op, index))
        return {name: tuple(ops) for name, ops in readers.items()}

    @cached_property
    def backward_of(self) -> Mapping[str, tuple[Op, ...]]:
        """The backward ops of each forward op."""
        found: dict[str, list[Op]] = {}
        for op in self.backward:
            found.setdefault(op.origin, []).append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def region_of(self) -> Mapping[str, Region]:
        """The region of each op that belongs to one."""
        return {name: region for region in self.regions for name in region.ops}

    def multiplicity(self, op: Op) -> int:
        """How many ops of the unfolded graph this one stands for."""
        name = op.origin or op.name
        region = self.region_of.get(name)
        return region.count - (name in region.inner) if region else 1

    def copies_of(self, parameter: Parameter) -> int:
        """How many parameters of the model this one stands for."""
        inside = (region.count for region in self.regions if parameter.fqn.startswith(region.copies[0] + "."))
        return next(inside, 1)

    def glob(self, fqn: str) -> str:
        """The name in the plan file: `layers.0.wq.weight` becomes `layers.*.wq.weight` where layers are folded."""
        for region in self.regions:
            if fqn == region.copies[0] or fqn.startswith(region.copies[0] + "."):
                return region.glob + fqn[len(region.copies[0]) :]
        return fqn
