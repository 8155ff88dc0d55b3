"""Where a plan cuts a model.

Stage i begins at the first call of the module `plan.stages[i].begin` or, where that is a container, of a module in it. With the forward as
a list of calls (see `fold`), and begin(i) a position in it, the tensors that cross cut i are

    live(i) = { v : made at a position < begin(i), read at a position >= begin(i) or returned by the model }

A tensor read only two stages later is handed through the stage between. What follows from the batch, constants and buffers alone (masks,
positions) is not sent but computed again where it is read; parameters and buffers are kept by every stage that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from planner.errors import MismatchError, PlanError
from planner.ir.names import matches
from planner.ir.plan import Plan
from planner.runtime.export import blocks, cannot_cut, example, export, frames
from planner.runtime.fold import Folded, fold
from planner.runtime.operators import is_pure


@dataclass(frozen=True, slots=True)
class Cuts:
    """A model that is ready to be cut: its calls, which stage each node is made in, and what can be computed on any stage."""

    model: nn.Module
    folded: Folded
    stage_of: Mapping[fx.Node, int]
    portable: frozenset[fx.Node]
    trains: frozenset[fx.Node]
    stages: int

    def live(self, stage: int) -> tuple[fx.Node, ...]:
        """The tensors that enter `stage` from the one before, in the order in which they are made."""
        return tuple(
            node
            for node in self.folded.graph.nodes
            if node not in self.portable and self.stage_of[node] < stage and any(self.stage_of[user] >= stage for user in node.users)
        )

    def nodes_of(self, stage: int) -> tuple[fx.Node, ...]:
        """What `stage` executes, in order: its own nodes and the portable ones that they read."""
        wanted = {node for node in self.folded.graph.nodes if node not in self.portable and self.stage_of[node] == stage}
        for node in reversed(self.folded.graph.nodes):
            if node in wanted:
                wanted.update(source for source in node.all_input_nodes if source in self.portable)
        return tuple(node for node in self.folded.graph.nodes if node in wanted)

    def held(self, stage: int) -> dict[str, Tensor]:
        """The parameters and buffers that `stage` reads, by every name that it reads them by."""
        found: dict[str, Tensor] = {}
        for node in self.nodes_of(stage):
            if node.op == "call_module":
                block = self.model.get_submodule(str(node.target))
                for name, tensor in [*block.named_parameters(remove_duplicate=False), *block.named_buffers(remove_duplicate=False)]:
                    found[f"{node.target}.{name}"] = tensor
            elif node.op == "get_attr" and isinstance(value := attribute(self.model, str(node.target)), Tensor):
                found[str(node.target)] = value
        return found


def cut(model: nn.Module, plan: Plan) -> Cuts:
    """Exports `model` and finds the cuts of `plan`.

    Raises ModelError, with the reason, if the model cannot be cut, PlanError if a stage begins at a module that forward does not call,
    MismatchError for a border that no stage can apply.
    """
    begins = [stage.begin for stage in plan.stages[1:]]
    around = frames(begins)
    refuse_borders(plan, around)
    dtype = getattr(torch, plan.model.compute_dtype) if plan.model.compute_dtype != plan.model.dtype else None
    program = export(model, example(plan.model.inputs), whole=tuple(blocks(model, around)), compute_dtype=dtype)
    hooked = {name.partition(":")[0] for name, _ in plan.activations}
    return cuts_of(model, fold(program, model, around, hooked=lambda fqn: any(matches(glob, fqn) for glob in hooked)), begins)


def refuse_borders(plan: Plan, around: Set[str]) -> None:
    """MismatchError names a border of one of the modules `around`, which are cut: no rank runs them whole, so nothing would apply it."""
    for name, moved in plan.activations:
        owner = name.partition(":")[0]
        changes = moved.value_from != moved.value or moved.grad_from != moved.grad
        if changes and any(matches(owner, fqn) for fqn in around):
            raise MismatchError(
                f"border {name}: {owner or 'the model'} is cut into pipeline stages, so no rank can apply it; "
                "plan this model again, or with --mesh pp=1"
            )


def cuts_of(model: nn.Module, folded: Folded, begins: Sequence[str]) -> Cuts:
    """The nodes of each stage."""
    starts = [0, *start_positions(folded.graph, begins)]
    nodes = list(folded.graph.nodes)
    stage_of = {node: sum(position >= start for start in starts) - 1 for position, node in enumerate(nodes)}
    stage_of[nodes[-1]] = len(begins)
    cuts = Cuts(model, folded, stage_of, portable_nodes(folded, model), training_nodes(folded, model), len(starts))
    check(cuts)
    return cuts


def start_positions(graph: fx.Graph, begins: Sequence[str]) -> Iterator[int]:
    """The position of the first call of each of `begins`; PlanError if there is none or it comes too early."""
    previous = 0
    for begin in begins:
        found = (index for index, node in enumerate(graph.nodes) if any(is_within(fqn, begin) for fqn in node.meta.get("modules", ())))
        position = next(found, None)
        if position is None:
            raise PlanError(f"a stage begins at module {begin!r}, which forward does not call; plan this model again")
        if position <= previous:
            raise PlanError(
                f"a stage begins at module {begin!r}, which forward calls before the stage ahead of it begins; plan this model again"
            )
        yield position
        previous = position


def is_within(fqn: str, outer: str) -> bool:
    """Whether `fqn` is the module `outer` or lies in it."""
    return fqn == outer or fqn.startswith(f"{outer}.")


def is_parameter(model: nn.Module, node: fx.Node) -> bool:
    """Whether the node reads a parameter."""
    return node.op == "get_attr" and isinstance(attribute(model, str(node.target)), nn.Parameter)


def attribute(model: nn.Module, fqn: str) -> Any:
    """The parameter or buffer with this name, None for a helper of the exported program."""
    owner, _, name = fqn.rpartition(".")
    try:
        return getattr(model.get_submodule(owner), name)
    except AttributeError:
        return None


def portable_nodes(folded: Folded, model: nn.Module) -> frozenset[fx.Node]:
    """Nodes whose value any stage can make for itself: inputs, constants, attributes, and pure operators on them without parameters."""
    portable: set[fx.Node] = set()
    for node in folded.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            portable.add(node)
        elif node.op == "call_function" and is_pure(node) and not node.meta["mutated"]:
            sources = node.all_input_nodes
            if all(source in portable and not source.meta["mutated"] and not is_parameter(model, source) for source in sources):
                portable.add(node)
    return frozenset(portable)


def training_nodes(folded: Folded, model: nn.Module) -> frozenset[fx.Node]:
    """Nodes whose value may need a gradient: a trainable parameter flows into it."""
    found: set[fx.Node] = set()
    for node in folded.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
            continue
        if node.op == "get_attr":
            parameter = attribute(model, str(node.target))
            needs = isinstance(parameter, nn.Parameter) and parameter.requires_grad
        elif node.op == "call_module":
            needs = any(p.requires_grad for p in model.get_submodule(str(node.target)).parameters())
        else:
            needs = False
        flows = node.target is not torch.ops.aten.detach.default and any(source in found for source in node.all_input_nodes)
        if needs or flows:
            found.add(node)
    return frozenset(found)


def check(cuts: Cuts) -> None:
    """ModelError if something other than a tensor crosses a cut, or a buffer that forward writes is read on two stages."""
    for stage in range(1, cuts.stages):
        for node in cuts.live(stage):
            if not isinstance(node.meta.get("val"), Tensor):
                raise cannot_cut(f"{node.name}, which is not a tensor, crosses the cut before stage {stage}")
    readers: dict[str, list[int]] = {}
    for stage in range(cuts.stages):
        for fqn in cuts.folded.written & cuts.held(stage).keys():
            readers.setdefault(fqn, []).append(stage)
    for fqn, stages in readers.items():
        if len(stages) > 1:
            raise cannot_cut(f"buffer {fqn} is written by forward and read on stages {', '.join(map(str, stages))}")
