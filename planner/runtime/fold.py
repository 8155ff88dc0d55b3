"""The forward of a model as one flat list of calls: its blocks whole, the code around them as operators.

The operators of every exported block are put back into one call of the block itself, so that a stage runs the user's module, with its
hooks, its randomness and its FSDP unit. Two kinds of code remain as operators: that of the modules that are cut (the model, its decoder), and
that of pure modules without parameters (tables of rotary embeddings, masks), which several stages may want to run. The result is a
`torch.fx.Graph`:

    placeholder    a tensor of the batch that forward takes, or a constant of its code
    get_attr       a parameter or buffer that the remaining code reads, by FQN; one node per use
    call_module    a block, by FQN; `leaf(value, i)` reads its outputs
    call_function  an operator of the remaining code

Every node's `meta` holds: `val`, its fake value; `modules`, the FQNs of the calls it is part of, outermost first; `border`, the name of
the module border that its value leaves by; `mutated`, whether some operator writes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from planner.runtime.export import cannot_cut
from planner.runtime.operators import OUT_OF_PLACE, Place, places_of, with_written, writes


@dataclass(frozen=True, slots=True)
class Folded:
    """`graph` as in the module docstring. `inputs` are the pytree paths in (args, kwargs) of its input placeholders, by placeholder name;
    `constants` the values of its constant placeholders; `helpers` the operator-only submodules (no_grad regions) that get_attr nodes name;
    `names` all the FQNs of each parameter and buffer, in the model's order; `written` the FQNs of the buffers that forward writes;
    `output` the structure of the model's output."""

    graph: fx.Graph
    inputs: Mapping[str, str]
    constants: Mapping[str, Tensor]
    helpers: Mapping[str, nn.Module]
    names: Mapping[str, tuple[str, ...]]
    written: frozenset[str]
    output: pytree.TreeSpec


@dataclass(frozen=True, slots=True)
class NodeName:
    """Names a node of the exported graph, where a constant could stand too."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a block: the pytree leaves that go in and come out, and the pytree path of each output."""

    fqn: str
    inputs: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    outputs: tuple[Any, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the exported program says about names: `attributes` are FQNs of parameters and buffers by placeholder; `names` all the FQNs of
    each of them; `places` where each operator stands; `mutated` the nodes that are written into."""

    nodes: Mapping[str, fx.Node]
    calls: Mapping[str, Call]
    attributes: Mapping[str, str]
    names: Mapping[str, tuple[str, ...]]
    constants: Mapping[str, Tensor]
    inputs: Mapping[str, str]
    places: Mapping[str, Place]
    mutated: frozenset[str]


@dataclass(frozen=True, slots=True)
class Draft:
    """The graph being written; `env` maps names of the exported graph to its nodes, `entered` are the calls written so far."""

    graph: fx.Graph
    env: dict[str, Any]
    entered: set[str]
    helpers: dict[str, nn.Module]


def leaf(value: Any, index: int) -> Any:
    """Leaf number `index` of what a block returned."""
    return pytree.tree_leaves(value)[index]


def fold(program: ExportedProgram, model: nn.Module, cut: Set[str], *, hooked: Callable[[str], bool] = lambda fqn: False) -> Folded:
    """The exported `model` with every block whole that is not in `cut`; modules that are `hooked` stay whole even if they are pure.

    Raises ModelError where a block talks to the rest of the model past its arguments and outputs.
    """
    facts = facts_of(program, model, cut, hooked)
    draft = Draft(fx.Graph(), {}, set(), {})
    for name, node in facts.nodes.items():
        if node.op == "placeholder":
            place_input(draft, facts, name)
        elif node.op != "output" and facts.places[name].call:
            check_sources(node, facts)
            place_call(draft, facts, facts.places[name])
        elif node.op != "output" and node.target is not torch.ops.aten._assert_tensor_metadata.default:
            place_operator(draft, facts, node, program.graph_module)
    leaves = program.graph.output_node().args[0]
    draft.graph.output(tuple(read(draft, facts, item) if isinstance(item, fx.Node) else item for item in leaves))
    written = frozenset(name for node in facts.mutated & facts.attributes.keys() for name in facts.names[facts.attributes[node]])
    return Folded(draft.graph, facts.inputs, facts.constants, draft.helpers, facts.names, written, program.call_spec.out_spec)


def facts_of(program: ExportedProgram, model: nn.Module, cut: Set[str], hooked: Callable[[str], bool]) -> Facts:
    """Everything that folding asks about the exported program."""
    nodes = {node.name: node for node in program.graph.nodes}
    specs = program.graph_signature.input_specs
    unusual = [spec.kind.name.lower() for spec in specs if spec.kind in (InputKind.TOKEN, InputKind.CUSTOM_OBJ)]
    if unusual:
        raise cannot_cut(f"its forward uses a {unusual[0]}")
    placeholders = [name for name, node in nodes.items() if node.op == "placeholder"]
    by_kind = {name: spec for name, spec in zip(placeholders, specs, strict=True)}
    attributes = {name: spec.target for name, spec in by_kind.items() if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
    users = [name for name, spec in by_kind.items() if spec.kind is InputKind.USER_INPUT]
    return Facts(
        nodes=nodes,
        calls={entry.fqn: call_of(entry.fqn, entry.signature) for entry in program.module_call_graph if entry.signature is not None},
        attributes=with_written(attributes, program.graph),
        names=all_names(model),
        constants={name: program.constants[spec.target] for name, spec in by_kind.items() if spec.kind is InputKind.CONSTANT_TENSOR},
        inputs={name: path for name, path in zip(users, paths_of(program.call_spec.in_spec), strict=True) if is_tensor(nodes[name])},
        places=places_of(nodes, model, cut, hooked),
        mutated=frozenset(name for node in program.graph.nodes for name in writes(node)),
    )


def call_of(name: str, signature: Any) -> Call:
    """torch's record of a call; the name of a second call of a module ends in `@1`."""
    inputs, outputs = ([constant_or_name(item) for item in side] for side in (signature.inputs, signature.outputs))
    return Call(name.partition("@")[0], tuple(inputs), signature.in_spec, tuple(outputs), tuple(paths_of(signature.out_spec)))


def constant_or_name(argument: Any) -> Any:
    """A leaf of a call."""
    return argument.value if hasattr(argument, "value") else NodeName(argument.name)


def paths_of(spec: pytree.TreeSpec) -> list[str]:
    """The pytree path of each leaf of a structure."""
    numbered = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(numbered)[0]]


def all_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For every FQN of a parameter or buffer, all the FQNs of that tensor, in the model's order."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    same: dict[int, list[str]] = {}
    for fqn, tensor in named:
        same.setdefault(id(tensor), []).append(fqn)
    return {fqn: tuple(same[id(tensor)]) for fqn, tensor in named}


def is_tensor(node: fx.Node) -> bool:
    """Whether the node stands for a tensor."""
    return isinstance(node.meta.get("val"), Tensor)


def described(draft: Draft, facts: Facts, made: fx.Node, name: str, *, border: str = "") -> fx.Node:
    """Gives `made`, which stands for the exported node `name`, its meta and its place in the env."""
    source, place = facts.nodes[name], facts.places[name]
    modules = (*place.around, place.call.partition("@")[0]) if place.call else place.around
    made.meta = {"val": source.meta.get("val"), "modules": modules, "border": border, "mutated": name in facts.mutated}
    draft.env[name] = made
    return made


def place_input(draft: Draft, facts: Facts, name: str) -> None:
    """A tensor of the batch or a constant becomes a placeholder; an input that is no tensor the constant it was."""
    if name in facts.inputs or name in facts.constants:
        described(draft, facts, draft.graph.placeholder(name), name)
    elif name not in facts.attributes:
        draft.env[name] = facts.nodes[name].meta.get("val")


def place_operator(draft: Draft, facts: Facts, node: fx.Node, program: nn.Module) -> None:
    """An operator of the remaining code."""
    if node.op == "get_attr":
        draft.helpers[str(node.target)] = program.get_submodule(str(node.target))
        described(draft, facts, draft.graph.get_attr(str(node.target)), node.name)
        return
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda item: read(draft, facts, item))
    described(draft, facts, draft.graph.call_function(OUT_OF_PLACE.get(node.target, node.target), args, kwargs), node.name)


def place_call(draft: Draft, facts: Facts, place: Place) -> None:
    """The call of a block, at its first operator, and one node for each tensor that it returns."""
    if place.call in draft.entered:
        return
    draft.entered.add(place.call)
    call = facts.calls.get(place.call)
    if call is None:
        raise cannot_cut(f"{place.call} is called although the module that contains it is not")
    leaves = [read(draft, facts, facts.nodes[item.name]) if isinstance(item, NodeName) else item for item in call.inputs]
    args, kwargs = pytree.tree_unflatten(leaves, call.in_spec)
    made = draft.graph.call_module(call.fqn, tuple(args), kwargs)
    made.meta = {"val": None, "modules": (*place.around, call.fqn), "border": "", "mutated": False}
    for index, (item, path) in enumerate(zip(call.outputs, call.paths, strict=True)):
        if isinstance(item, NodeName) and item.name not in draft.env:
            described(draft, facts, draft.graph.call_function(leaf, (made, index)), item.name, border=f"{call.fqn}:output{path}")


def read(draft: Draft, facts: Facts, node: fx.Node) -> Any:
    """What stands for an exported node in the new graph."""
    if node.name in draft.env:
        return draft.env[node.name]
    if node.name in facts.attributes:
        made = draft.graph.get_attr(facts.attributes[node.name])
        described(draft, facts, made, node.name)
        return draft.env.pop(node.name)
    raise cannot_cut(f"{facts.places[node.name].call} hands on a tensor ({node.name}) that it does not return")


def check_sources(node: fx.Node, facts: Facts) -> None:
    """ModelError unless an operator inside a block reads the block's arguments, its own parameters or what it computed."""
    call = facts.places[node.name].call
    if call not in facts.calls:
        return
    arguments = {item.name for item in facts.calls[call].inputs if isinstance(item, NodeName)}
    own = f"{facts.calls[call].fqn}."
    for source in node.all_input_nodes:
        if source.name in arguments:
            continue
        if source.name in facts.attributes:
            if not any(name.startswith(own) for name in facts.names[facts.attributes[source.name]]):
                raise cannot_cut(f"{call} reads {facts.attributes[source.name]}, which belongs to another module")
        elif facts.places[source.name].call != call and source.name not in facts.constants:
            raise cannot_cut(f"{call} reads a tensor ({source.name}) that is not among its arguments")
