"""One stage of a model: the module that a rank runs.

The stage keeps the blocks, parameters and buffers of the model itself, under their names; the code between blocks becomes a graph of
operators. What other stages hold is left behind and freed with the model.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch
from torch import fx, nn

from planner.errors import MismatchError, ModelError, PlanError
from planner.ir.names import lookup
from planner.ir.plan import Plan
from planner.runtime.cuts import Cuts, attribute, cut
from planner.runtime.stage import Program, Shared, StageModule, StagePart, Value, attach, lend_initialisers, on_device, persistence
from planner.runtime.world import default_device


def split(model: nn.Module, plan: Plan, *, pp_rank: int, device: torch.device | None = None) -> StagePart:
    """Stage `pp_rank` of `plan`, with the modules and parameters of `model` itself; `model` may be on the meta device.

    Raises ModelError, with the reason, if the model cannot be cut, PlanError if a stage begins at a module that forward does not call,
    MismatchError for a border of a module that is cut.
    """
    return part_of(cut(model, plan), pp_rank, device=device or default_device())


def part_of(cuts: Cuts, stage: int, *, device: torch.device) -> StagePart:
    """One stage as a module."""
    received = () if stage == 0 else cuts.live(stage)
    sent = () if stage == cuts.stages - 1 else cuts.live(stage + 1)
    module = StageModule(program_of(cuts, stage, received, sent, device))
    furnish(module, cuts, stage)
    return StagePart(
        module=module,
        index=stage,
        stages=cuts.stages,
        received=tuple(value_of(cuts, node, stage) for node in received),
        sent=tuple(value_of(cuts, node, stage + 1) for node in sent),
        shared=shared_parameters(cuts, stage),
        sharing=tuple(sorted(set(holders(cuts).values()))),
    )


def value_of(cuts: Cuts, node: fx.Node, stage: int) -> Value:
    """The description of a tensor that enters `stage`."""
    value = node.meta["val"]
    readers = (user for user in node.users if cuts.stage_of[user] >= stage and user.op == "call_module")
    reader = next((f"{user.target}:input{argument_path(user, node)}" for user in readers), "")
    return Value(node.name, tuple(value.shape), value.dtype, node in cuts.trains, node.meta["border"], reader)


def argument_path(call: fx.Node, node: fx.Node) -> str:
    """The pytree path of an argument as a border names it: nothing for a single one, `[0]` for a positional, `['x']` for a keyword one."""
    if len(call.args) == 1 and not call.kwargs:
        return ""
    positional = (f"[{index}]" for index, item in enumerate(call.args) if item is node)
    keyword = (f"['{name}']" for name, item in call.kwargs.items() if item is node)
    return next(positional, None) or next(keyword, "")


def held_modules(cuts: Cuts, stage: int) -> tuple[str, ...]:
    """The blocks that `stage` calls, in the model's order."""
    called = {str(node.target) for node in cuts.nodes_of(stage) if node.op == "call_module"}
    return tuple(fqn for fqn, _ in cuts.model.named_modules(remove_duplicate=False) if fqn in called)


def attribute_names(cuts: Cuts, stage: int) -> dict[str, str]:
    """For every parameter or buffer that the code between blocks reads: the name under which this stage has it, a block's if it can."""
    inside = tuple(f"{fqn}." for fqn in held_modules(cuts, stage))
    names = {}
    for node in cuts.nodes_of(stage):
        aliases = cuts.folded.names.get(str(node.target), ()) if node.op == "get_attr" else ()
        if aliases:
            names[str(node.target)] = next((name for name in aliases if name.startswith(inside)), aliases[0])
    return names


def furnish(module: StageModule, cuts: Cuts, stage: int) -> None:
    """Hangs into the stage its blocks, what the code between them reads and no block has, and the initialisers of the modules that are cut."""
    held = held_modules(cuts, stage)
    for fqn in held:
        attach(module, fqn, cuts.model.get_submodule(fqn))
    inside = tuple(f"{fqn}." for fqn in held)
    persistent = persistence(cuts.model)
    for fqn in attribute_names(cuts, stage).values():
        if not fqn.startswith(inside):
            attach(module, fqn, attribute(cuts.model, fqn), persistent=persistent.get(fqn, True))
    for fqn, holder in tuple(module.named_modules()):
        if fqn not in held and not fqn.startswith(inside):
            lend_initialisers(holder, cuts.model.get_submodule(fqn))
    for name, helper in cuts.folded.helpers.items():
        if any(node.op == "get_attr" and node.target == name for node in cuts.nodes_of(stage)):
            attach(module, name, helper)


def program_of(cuts: Cuts, stage: int, received: tuple[fx.Node, ...], sent: tuple[fx.Node, ...], device: torch.device) -> Program:
    """The graph of one stage."""
    folded, nodes, names = cuts.folded, cuts.nodes_of(stage), attribute_names(cuts, stage)
    graph, env = fx.Graph(), {}
    placeholders = [node for node in nodes if node.op == "placeholder"]  # named by their targets: fx renames `input`
    inputs = [node for node in placeholders if node.target in folded.inputs]
    constants = [node for node in placeholders if node.target in folded.constants]
    for node in (*received, *inputs, *constants):
        env[node] = graph.placeholder(node.name)
    for node in received:
        if node.meta["mutated"]:
            env[node] = graph.call_function(torch.ops.aten.clone.default, (env[node],))
    for node in nodes:
        if node.op not in ("placeholder", "output"):
            env[node] = copied(graph, node, env, names, device)
    output = folded.graph.output_node()
    last = stage == cuts.stages - 1
    graph.output(fx.map_arg(output.args[0], env.__getitem__) if last else tuple(env[node] for node in sent))
    return Program(
        graph=graph,
        inputs=tuple(folded.inputs[str(node.target)] for node in inputs),
        constants=tuple(folded.constants[str(node.target)].to(device) for node in constants),
        output=folded.output if last else None,
        signature=inspect.signature(cuts.model.forward),
    )


def copied(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node], names: dict[str, str], device: torch.device) -> fx.Node:
    """`node` in the stage's graph, for the stage's names and device."""
    if node.op == "get_attr":
        return graph.get_attr(names.get(str(node.target), str(node.target)))
    made = graph.node_copy(node, env.__getitem__)
    if node.op == "call_function":
        made.args, made.kwargs = on_device((made.args, made.kwargs), device)
    return made


def holders(cuts: Cuts) -> dict[nn.Parameter, tuple[int, ...]]:
    """The stages that hold each parameter, where there are several."""
    found: dict[nn.Parameter, list[int]] = {}
    for stage in range(cuts.stages):
        for parameter in dict.fromkeys(tensor for tensor in cuts.held(stage).values() if isinstance(tensor, nn.Parameter)):
            found.setdefault(parameter, []).append(stage)
    return {parameter: tuple(stages) for parameter, stages in found.items() if len(stages) > 1}


def shared_parameters(cuts: Cuts, stage: int) -> tuple[Shared, ...]:
    """The parameters of `stage` that others hold too."""
    here, held = attribute_names(cuts, stage), cuts.held(stage)
    found = []
    for parameter, stages in holders(cuts).items():
        fqns = tuple(dict.fromkeys(here.get(fqn, fqn) for fqn, tensor in held.items() if tensor is parameter))
        if fqns:
            canonical = cuts.folded.names[fqns[0]][0]
            named = (index for index in stages if canonical in cuts.held(index) or canonical in attribute_names(cuts, index).values())
            found.append(Shared(canonical, fqns, stages, next(named, stages[0])))
    return tuple(found)


def stage_plan(plan: Plan, part: StagePart) -> Plan:
    """`plan` with a placement for every name that a shared parameter has on this stage: the one of its first name in the model."""
    known = {name for name, _ in plan.parameters}
    named = [(fqn, lookup(plan.parameters, shared.canonical)) for shared in part.shared for fqn in shared.fqns if fqn not in known]
    return replace(plan, parameters=(*plan.parameters, *((fqn, placed) for fqn, placed in named if placed is not None)))


def why_not(model: nn.Module, plan: Plan) -> str:
    """Why `model` cannot be cut as `plan` says, in one line; empty if it can."""
    try:
        cut(model, plan)
    except (MismatchError, ModelError, PlanError) as error:
        return str(error)
    return ""
