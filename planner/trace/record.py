"""A dispatch mode that writes down every operator torch runs, below autograd, forward and backward.

Autograd numbers its nodes in order of creation, and the next number can be read at any time. Therefore, without any bookkeeping in the
model:

    a node created since the operator before belongs to the operator that runs now;
    a tensor packed for backward while the next number is n + 1 is kept by node n;
    an operator that runs while node n is being evaluated is backward of the operator that created n.

The sum of two gradients of one tensor runs while the later of its two consumers is being evaluated, and is counted to that consumer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from planner.ir.graph import Op, TensorArg
from planner.trace.arguments import plain, positional, target_name, written
from planner.trace.flops import element_flop, flop_of
from planner.trace.names import Names, piece

_NOISE = frozenset({"prim.device.default"})
_CREATION = frozenset({"detach", "alias", "lift_fresh"})


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor as it was when it got its name; `tensor` is asked for `requires_grad` when the recording ends."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    base: str
    tensor: torch.Tensor


@dataclass(slots=True)
class Record:
    """What a recorder has written so far."""

    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    op_of_node: dict[int, str] = field(default_factory=dict)
    saved_by_node: dict[int, list[str]] = field(default_factory=dict)
    unmodelled: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    module_of_op: dict[str, str] = field(default_factory=dict)

    def count_unmodelled(self, target: str) -> None:
        """One more operator without a formula."""
        self.unmodelled[target] = self.unmodelled.get(target, 0) + 1


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Enter it inside the fake mode. `modules` is the stack of running modules' FQNs; hooks push and pop."""

    def __init__(self) -> None:
        super().__init__()
        self.record = Record()
        self.names = Names(emit=self._emit_view, unknown=self._unknown)
        self.modules: list[str] = [""]
        self.in_backward = False
        self.paused = False
        self._next_node = torch.autograd._get_sequence_nr()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run the operator on fake tensors and write it down."""
        kwargs = kwargs or {}
        if self.paused or str(func) in _NOISE:
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        outputs = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if not outputs and func._schema.is_mutable:
            outputs = list(written(func, positional(func, args, kwargs)))
        if outputs and not self._is_alias(func, args, outputs):
            self._record(func, args=args, kwargs=kwargs, out=out, outputs=outputs)
        return out

    def add_value(self, tensor: torch.Tensor, name: str, *, base: str = "") -> str:
        """A value with a name; `base` is the owner of its storage where it is not a storage of its own."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        owner = base or self.names.base(tensor) or name
        self.record.values[name] = Value(name, tuple(tensor.shape), dtype, owner, tensor)
        return name

    def bind(self, tensor: torch.Tensor, name: str) -> None:
        """A tensor from outside: a parameter, a buffer, an input."""
        self.add_value(tensor, name)
        self.names.bind(tensor, name)

    def add_border(self, tensor: torch.Tensor, border: str, *, module: str) -> str:
        """An identity op named `border` behind the current name of `tensor`; the caller decides who sees its output."""
        source = self.names.of(tensor)
        name = self.fresh_name("border")
        self.add_value(tensor, name, base=self.record.values[source].base)
        self._append(Op(name, "border", (source,), (name,), (), module, 0, border=border))
        return name

    def add_whole(
        self, target: str, *, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], args: tuple[Any, ...], flop: int
    ) -> None:
        """An operator that is kept whole: no torch operator, one entry. `args` are appended to its tensors."""
        named, inputs = plain(tensors, self.names.of)
        self._name_outputs(target, outputs=outputs, inputs=inputs, args=(*named, *args), flop=flop)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """The pack hook of saved tensors."""
        if not self.paused and not self.in_backward:
            node = torch.autograd._get_sequence_nr() - 1
            self.record.saved_by_node.setdefault(node, []).append(self.names.of(tensor))
        return tensor

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """What the autograd node made last keeps for backward, where it does so without pack hooks."""
        node = torch.autograd._get_sequence_nr() - 1
        self.record.saved_by_node.setdefault(node, []).extend(self.names.of(tensor) for tensor in tensors)

    def forget_nodes(self) -> None:
        """Autograd nodes created since the last operator belong to none."""
        self._next_node = torch.autograd._get_sequence_nr()

    def _is_alias(self, func: OpOverload, args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether the call returned what it was given: `detach`, a view to the same shape."""
        if len(outputs) != 1 or func._schema.is_mutable or not args or not isinstance(args[0], torch.Tensor):
            return False
        if func._opname not in _CREATION and not func.is_view:
            return False
        if piece(outputs[0]) != piece(args[0]):
            return False
        self.names.bind(outputs[0], self.names.of(args[0]))
        return True

    def _record(self, func: OpOverload, *, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, outputs: Sequence[torch.Tensor]) -> None:
        values = positional(func, args, kwargs)
        data, inputs = plain(values, self.names.of)
        mutated = written(func, values)
        target = target_name(func)
        flop = flop_of(func, args, kwargs, out)
        if flop is None:
            self.record.count_unmodelled(target)
            flop = element_flop(out)
        short = target.split(".")[1] if target.count(".") == 2 else target
        self._name_outputs(short, outputs=outputs, inputs=inputs, args=data, flop=flop, target=target, mutated=mutated)

    def _name_outputs(
        self, short: str, *, outputs: Sequence[torch.Tensor], inputs: tuple[str, ...], args: tuple[Any, ...], flop: int, target: str = "",
        mutated: Sequence[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        op = self.fresh_name(short.strip("_"))
        written_ids = {id(tensor) for tensor in mutated}
        names = []
        for index, tensor in enumerate(outputs):
            name = op if len(outputs) == 1 else f"{op}.{index}"
            if id(tensor) in written_ids:
                self.add_value(tensor, name, base=name)
                self.names.wrote(tensor, name)
            else:
                self.add_value(tensor, name)
                self.names.bind(tensor, name)
            names.append(name)
        origin, module = self._place()
        self._append(Op(op, target or short, inputs, tuple(names), args, module, flop, origin=origin))
        if not self.in_backward:
            self._claim_nodes(op)

    def _claim_nodes(self, op: str) -> None:
        following = torch.autograd._get_sequence_nr()
        for node in range(self._next_node, following):
            self.record.op_of_node[node] = op
        self.record.module_of_op[op] = self.modules[-1]
        self._next_node = following

    def _place(self) -> tuple[str, str]:
        """(origin, module) of the operator that runs now."""
        if not self.in_backward:
            return "", self.modules[-1]
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else -1
        origin = self.record.op_of_node.get(number, "")
        return origin, self.record.module_of_op.get(origin, "")

    def _append(self, op: Op) -> None:
        (self.record.backward if self.in_backward else self.record.forward).append(op)

    def fresh_name(self, short: str) -> str:
        """A name that no value or operator has."""
        stem = f"grad.{short}" if self.in_backward else short
        number = self.record.counts[stem] = self.record.counts.get(stem, -1) + 1
        return f"{stem}_{number}"

    def _emit_view(self, target: str, names: tuple[str, ...], args: tuple[object, ...], tensor: torch.Tensor) -> str:
        short = target.split(".")[1]
        op = self.fresh_name(short)
        self.add_value(tensor, op, base=self.record.values[names[-1]].base if short == "view" else op)
        origin, module = self._place()
        numbered = tuple(TensorArg(index) for index in range(len(names)))
        self._append(Op(op, target, names, (op,), (*numbered, *args), module, 0, origin=origin))  # type: ignore[arg-type]
        return op

    def _unknown(self, tensor: torch.Tensor) -> str:
        """A tensor that no operator seen here made (a global of the user's file, a number that torch wraps) counts as made where it is read."""
        name = self.fresh_name("constant")
        self.add_value(tensor, name)
        self.names.bind(tensor, name)
        origin, module = self._place()
        self._append(Op(name, "aten.empty.memory_format", (), (name,), (tuple(tensor.shape),), module, 0, origin=origin))
        return name
