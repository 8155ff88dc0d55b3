"""The placement decisions of one graph on one tensor-parallel degree, with their prices: the bridge from Graph to Problem and back.

A node is a parameter, buffer, input or forward op of the folded graph. Linked ports are the uses of one tensor, which all see one layout.
The carried tensors of a region link the layout that the block writes to the one it reads, so that all copies can be alike.

Saved activations are charged to the node that makes the storage: the op that owns it, or the border that redistributes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.ir.graph import Graph, Op, Parameter
from planner.ir.placement import Layout, R
from planner.ir.problem import Choice, Link, Node, Problem
from planner.ir.strategy import Strategy
from planner.prune.consistency import consistent
from planner.prune.determined import Joined, Members, join
from planner.rules.border import transitions
from planner.rules.leaf import layouts
from planner.rules.table import strategies
from planner.search.price import OpPrice, Pricer, local_bytes


@dataclass(frozen=True, slots=True)
class Way:
    """One priced way to run a node. Seconds and bytes are for one copy: activations per microbatch in flight, `numel` of a parameter's
    local part."""

    strategy: Strategy
    price: OpPrice
    saved_bytes: float = 0.0
    numel: float = 0.0
    reduce_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.price.forward_s + self.price.backward_s + self.price.forward_tp_s + self.price.backward_tp_s

    @property
    def ports(self) -> tuple[Layout, ...]:
        return (*self.strategy.inputs, *self.strategy.outputs)


@dataclass(frozen=True, slots=True)
class Decision:
    """A node with its ways; `op` is None for leaves, `parameter` is set for parameters. `copies` is its multiplicity."""

    name: str
    op: Op | None
    parameter: Parameter | None
    copies: int
    recomputable: bool
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """How a candidate values time and memory, per microbatch: how often partial gradients are reduced, seconds of the optimizer per element
    of a parameter; whether blocks are recomputed; microbatches in flight, state bytes per element."""

    reductions: float
    element_s: float
    recompute: bool
    in_flight: float
    state_bytes: float


@dataclass(frozen=True, slots=True)
class Space:
    """All decisions of one graph at one degree. `shape` is the placement problem without costs, its determined nodes joined."""

    graph: Graph
    degree: int
    decisions: tuple[Decision, ...]
    shape: Joined

    def problem(self, weights: Weights, *, memory_limit: float | None = None) -> Problem:
        """Seconds per microbatch and bytes on one rank, as if the whole model were one stage; `shape.expand` turns its picks into ways."""
        prices = [[_price(decision, way, weights) for way in decision.ways] for decision in self.decisions]

        def choice(ports: tuple[Layout, ...], members: Members) -> Choice:
            parts = [prices[node][way] for node, way in members]
            return Choice(ports, sum(seconds for seconds, _ in parts), sum(nbytes for _, nbytes in parts))

        rows = zip(self.shape.problem.nodes, self.shape.members, strict=True)
        nodes = tuple(
            Node(node.name, tuple(choice(c.ports, members) for c, members in zip(node.choices, found, strict=True))) for node, found in rows
        )
        return Problem(nodes, self.shape.problem.links, memory_limit)


def _price(decision: Decision, way: Way, weights: Weights) -> tuple[float, float]:
    """Seconds and bytes of all copies."""
    price, again = way.price, weights.recompute and decision.recomputable
    seconds = way.seconds + way.reduce_s * weights.reductions + way.numel * weights.element_s
    if again:
        seconds += price.forward_s + price.forward_tp_s
    held = way.numel * weights.state_bytes + (0.0 if again else way.saved_bytes * weights.in_flight)
    return decision.copies * seconds, decision.copies * held


def build(pricer: Pricer, *, grad_bytes: int) -> Space:
    """The space of the pricer's graph at its degree; RuleError if an op has no rule and the degree is above 1.

    `grad_bytes` is the element size in which gradients are reduced over tp.
    """
    graph = pricer.graph
    saved = saved_makers(graph)
    decisions = [*_leaves(pricer, grad_bytes), *(_of_op(pricer, op, saved) for op in graph.ops)]
    bare = tuple(Node(d.name, tuple(Choice(way.ports, 0.0) for way in d.ways)) for d in decisions)
    small, kept = consistent(Problem(bare, _links(graph, decisions)))
    possible = tuple(replace(d, ways=tuple(d.ways[way] for way in ways)) for d, ways in zip(decisions, kept, strict=True))
    return Space(graph, pricer.degree, possible, join(small))


def _leaves(pricer: Pricer, grad_bytes: int) -> list[Decision]:
    graph, degree = pricer.graph, pricer.degree
    free = OpPrice(0.0, 0.0, 0.0, 0.0, 0.0)
    found = []
    for parameter in graph.parameters:
        ways = []
        for layout in layouts(parameter.shape, requires_grad=parameter.trainable, degree=degree):
            numel = parameter.numel / degree if layout.value.is_shard else float(parameter.numel)
            reduce_s = 0.0
            if layout.grad.is_partial:
                reduce_s = pricer.all_reduce_s(parameter.numel * grad_bytes)
            ways.append(Way(Strategy((), (layout,), False), free, numel=numel, reduce_s=reduce_s if parameter.trainable else 0.0))
        found.append(Decision(parameter.tensor, None, parameter, graph.copies_of(parameter), False, tuple(ways)))
    for name in (*(buffer.tensor for buffer in graph.buffers), *graph.inputs):  # the runtime hands them over whole
        found.append(Decision(name, None, None, 1, False, (Way(Strategy((), (R,), False), free),)))
    return found


def _of_op(pricer: Pricer, op: Op, saved: Mapping[str, bool]) -> Decision:
    graph, degree = pricer.graph, pricer.degree
    if op.border:
        found = transitions(graph.by_name[op.outputs[0]], degree)
        if _is_cut(graph, op.border):
            found = tuple(strategy for strategy in found if strategy.inputs == strategy.outputs)
    elif degree == 1:
        found = (Strategy((R,) * len(op.inputs), (R,) * len(op.outputs), False),)
    else:
        found = strategies(op, graph.by_name, degree, backward=graph.backward_of.get(op.name, ()))
    if graph.loss in op.outputs:  # backward starts from 1 on every rank
        found = tuple(strategy for strategy in found if strategy.outputs[op.outputs.index(graph.loss)] == R)
    inside = op.name in graph.region_of
    ways = tuple(Way(s, pricer.op(op, s), saved_bytes=_kept_bytes(graph, op, s, degree, saved)) for s in found)
    return Decision(op.name, op, None, graph.multiplicity(op), inside, ways)


def _is_cut(graph: Graph, border: str) -> bool:
    """Whether a border belongs to the model as a whole or to a module around repeated blocks: a pipeline takes these apart, and then the
    runtime has no call to hook."""
    module = border.partition(":")[0]
    return not module or any(copy.startswith(f"{module}.") for region in graph.regions for copy in region.copies)


def saved_makers(graph: Graph) -> Mapping[str, bool]:
    """The outputs whose storage autograd keeps, by the tensor that makes it: an owner of storage, or a border's output. The value says of a
    border whether the tensor before it is kept in its own right."""
    leaves = {p.tensor for p in graph.parameters} | {b.tensor for b in graph.buffers} | set(graph.inputs)
    made: dict[str, bool] = {}
    for op in (*graph.ops, *graph.backward):
        for name in op.saved:
            source = _maker(graph, name)
            if source not in leaves:
                made[source] = False
    for name in list(made):
        maker = graph.producer.get(name)
        if maker is not None and maker.border:
            made[name] = _maker(graph, maker.inputs[0]) in made
    return made


def _maker(graph: Graph, name: str) -> str:
    """Walk back over views to the tensor that owns the storage or the border that hands it on."""
    while (op := graph.producer.get(name)) is not None and not op.border and graph.by_name[name].base != name:
        viewed = [other for other in op.inputs if graph.by_name[other].base == graph.by_name[name].base]
        if not viewed:
            break
        name = viewed[0]
    return name


def _kept_bytes(graph: Graph, op: Op, strategy: Strategy, degree: int, saved: Mapping[str, bool]) -> float:
    total = 0.0
    for name, layout in zip(op.outputs, strategy.outputs, strict=True):
        if name not in saved:
            continue
        unchanged = op.border and strategy.inputs[0].value == layout.value
        if not (unchanged and saved[name]):
            total += local_bytes(graph.by_name[name], layout, degree)
    return total


def _links(graph: Graph, decisions: list[Decision]) -> tuple[Link, ...]:
    made: dict[str, tuple[int, int]] = {}
    for index, decision in enumerate(decisions):
        if decision.op is None:
            made[decision.name] = (index, 0)
        else:
            for port, name in enumerate(decision.op.outputs):
                made[name] = (index, len(decision.op.inputs) + port)
    links = []
    for index, decision in enumerate(decisions):
        for port, name in enumerate(decision.op.inputs if decision.op else ()):
            links.append(Link(*made[name], index, port))
    for region in graph.regions:
        links.extend(Link(*made[read], *made[written]) for read, written in region.carried)
    return tuple(links)
