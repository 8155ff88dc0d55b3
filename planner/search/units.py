"""A placed model as a sequence of units: what runs between two places where a pipeline cut is possible.

A unit begins at the call of a repeated block or of a top-level module; ops outside modules belong to the unit before the next call. Copies of a
folded block become units of their own here, all with the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.ir.graph import Graph, Op, Parameter, Region
from planner.ir.placement import Layout
from planner.ir.strategy import Collective
from planner.search.price import local_bytes
from planner.search.space import Decision, Space, Way


@dataclass(frozen=True, slots=True)
class PlacedParameter:
    """A parameter with the layout it got, and the elements of this rank's part; in a folded block it stands for the one of each copy."""

    parameter: Parameter
    layout: Layout
    numel: int

    def local_shape(self, degree: int) -> tuple[int, ...]:
        """The shape of this rank's part along tp."""
        shape = list(self.parameter.shape)
        if self.layout.value.is_shard:
            shape[self.layout.value.dim] //= degree
        return tuple(shape)


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """One unit, per microbatch on one rank. `kind` names the first of all units with the same numbers; `block` says that it is a copy of a
    repeated block. `entry_bytes` is the block's input, which
    full recompute keeps instead of `saved_bytes`; `repeated` are the collectives it runs again, all in the block but those at its own borders;
    `messages` are what a cut before this unit would send per microbatch, both ways, and `crossings` the tensors they carry."""

    begin: str
    kind: str
    block: bool
    forward_s: float
    backward_s: float
    forward_tp_s: float
    backward_tp_s: float
    saved_bytes: float
    entry_bytes: float
    working_bytes: float
    messages: tuple[Collective, ...]
    crossings: tuple[str, ...]
    parameters: tuple[PlacedParameter, ...]
    collectives: tuple[Collective, ...]
    repeated: tuple[Collective, ...]
    repeated_tp_s: float

    @property
    def sent_bytes(self) -> int:
        """Bytes of one hand-over before this unit, forward."""
        return sum(message.nbytes for message in self.messages if message.phase == "forward")


def unit_names(graph: Graph) -> tuple[str, ...]:
    """For each forward op, the module whose call begins its unit; what comes before the first call belongs to that one."""
    containers = _containers(graph)
    home = {copy: region.copies[0] for region in graph.regions for copy in region.copies}
    calls = [home.get(call, call) for call in (_call(op.module, containers) for op in graph.ops)]
    current = next(filter(None, calls), "")
    names, seen = [], {current}
    for call in calls:
        if call and call != current and call not in seen:  # a module called again cannot begin a second stage
            current = call
            seen.add(call)
        names.append(current)
    return tuple(names)


def _containers(graph: Graph) -> set[str]:
    """Modules that a cut may go through: those around repeated blocks, and lists that are never called themselves."""
    blocks = [copy for region in graph.regions for copy in region.copies]
    around = {prefix for copy in blocks for prefix in _prefixes(copy)[:-1]}
    called = {op.module for op in graph.ops} | {op.border.partition(":")[0] for op in graph.ops if op.border}
    lists = {prefix for op in graph.ops for prefix in _prefixes(op.module) if prefix not in called}
    return around | lists - set(blocks)


def _prefixes(fqn: str) -> list[str]:
    parts = fqn.split(".") if fqn else []
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _call(module: str, containers: set[str]) -> str:
    """The outermost module around an op that is no container; empty for ops outside of any."""
    return next((prefix for prefix in _prefixes(module) if prefix not in containers), "")


@dataclass(frozen=True, slots=True)
class _Solved:
    """A space with the way of each op and the layout of each tensor that were chosen."""

    space: Space
    ways: Mapping[str, Way]
    layouts: Mapping[str, Layout]


def place(space: Space, picks: Sequence[int]) -> tuple[PlacedUnit, ...]:
    """The units of a solved space, in the order of execution, with copies."""
    graph = space.graph
    chosen = [(decision, decision.ways[pick]) for decision, pick in zip(space.decisions, picks, strict=True)]
    layouts = {name: layout for decision, way in chosen for name, layout in zip(_made(decision), way.strategy.outputs, strict=True)}
    solved = _Solved(space, {decision.name: way for decision, way in chosen}, layouts)
    grouped: dict[str, list[Op]] = {}
    for op, name in zip(graph.ops, unit_names(graph), strict=True):
        grouped.setdefault(name, []).append(op)
    regions = {region.copies[0]: region for region in graph.regions}
    units: list[PlacedUnit] = []
    before: list[Op] = []
    for name, ops in grouped.items():
        if name in regions:
            units.extend(_copies(solved, regions[name], ops, before))
        else:
            units.append(_unit(solved, ops, begin=name, block=False, crossings=_crossing(graph, before, None)))
        before.extend(ops)
    return tuple(units)


def _made(decision: Decision) -> tuple[str, ...]:
    return decision.op.outputs if decision.op else (decision.name,)


def _copies(solved: _Solved, region: Region, ops: Sequence[Op], before: Sequence[Op]) -> list[PlacedUnit]:
    """The copies of a block: the first may have a border of its own before it, the last one instead of what only leads to another copy."""
    inside = [op for op in ops if op.name in region.ops]
    start = ops.index(inside[0])
    entry, exits = list(ops[:start]), [op for op in ops[start:] if op.name not in region.ops]
    last = [*(op for op in inside if op.name not in region.inner), *exits]
    graph, names = solved.space.graph, region.copies
    between = _crossing(graph, [*before, *entry, *inside], region)
    found = [_unit(solved, [*entry, *inside], begin=names[0], block=True, crossings=_crossing(graph, before, None))]
    if len(names) > 2:
        middle = _unit(solved, inside, begin=names[1], block=True, crossings=between)
        found.extend(replace(middle, begin=name) for name in names[1:-1])
    return [*found, _unit(solved, last, begin=names[-1], block=True, crossings=between)]


def _crossing(graph: Graph, before: Sequence[Op], inside: Region | None) -> tuple[str, ...]:
    """Tensors that ops so far made and later ones read: what a cut here sends. Between two copies of the block `inside`, its ops are both
    behind and ahead: what they carry is sent, and what they all read from outside.

    What follows from the batch and buffers alone is not sent: each stage computes it again.
    """
    again = frozenset(inside.ops if inside else ())
    reads, written = ({pair[0] for pair in inside.carried}, {pair[1] for pair in inside.carried}) if inside else (set(), set())
    done = {op.name for op in before} - again
    sent = _from_parameters(graph)

    def crosses(op: Op, name: str) -> bool:
        if name in written:
            return True
        ahead = {reader.name for reader, _ in graph.consumers.get(name, ())} - done
        return op.name not in again and bool(ahead - again if name in reads else ahead)

    return tuple(name for op in before for name in op.outputs if name in sent and crosses(op, name))


def _from_parameters(graph: Graph) -> frozenset[str]:
    """Tensors that depend on a parameter."""
    found = {parameter.tensor for parameter in graph.parameters}
    for op in graph.ops:
        if not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return frozenset(found)


def _unit(solved: _Solved, ops: Sequence[Op], *, begin: str, block: bool, crossings: tuple[str, ...]) -> PlacedUnit:
    graph, degree = solved.space.graph, solved.space.degree
    ways = [solved.ways[op.name] for op in ops]
    prices = [way.price for way in ways]
    entry = [name for region in graph.regions if set(region.ops) & {op.name for op in ops} for name, _ in region.carried]
    own = tuple(f"{copy}:" for copy in next((r.copies for r in graph.regions if begin in r.copies), (begin,)))
    inner = [way for op, way in zip(ops, ways, strict=True) if not op.border.startswith(own)]
    used = dict.fromkeys(name for op in ops for name in op.inputs)
    return PlacedUnit(
        begin=begin,
        kind=begin,
        block=block,
        forward_s=sum(p.forward_s for p in prices),
        backward_s=sum(p.backward_s for p in prices),
        forward_tp_s=sum(p.forward_tp_s for p in prices),
        backward_tp_s=sum(p.backward_tp_s for p in prices),
        saved_bytes=sum(way.saved_bytes for way in ways),
        entry_bytes=sum(local_bytes(graph.by_name[name], solved.layouts[name], degree) for name in entry),
        working_bytes=max((p.working_bytes for p in prices), default=0.0),
        messages=_messages(solved, crossings),
        crossings=crossings,
        parameters=tuple(_placed(p, solved.layouts[p.tensor], degree) for p in graph.parameters if p.tensor in used),
        collectives=tuple(c for way in ways for c in way.strategy.collectives),
        repeated=tuple(c for way in inner for c in way.strategy.collectives if c.phase == "forward"),
        repeated_tp_s=sum(way.price.forward_tp_s for way in inner),
    )


def _placed(parameter: Parameter, layout: Layout, degree: int) -> PlacedParameter:
    return PlacedParameter(parameter, layout, parameter.numel // (degree if layout.value.is_shard else 1))


def _messages(solved: _Solved, crossings: Sequence[str]) -> tuple[Collective, ...]:
    found = []
    for name in crossings:
        tensor = solved.space.graph.by_name[name]
        nbytes = round(local_bytes(tensor, solved.layouts[name], solved.space.degree))
        found.append(Collective("p2p", "pp", "forward", nbytes))
        if tensor.requires_grad:
            found.append(Collective("p2p", "pp", "backward", nbytes))
    return tuple(found)
