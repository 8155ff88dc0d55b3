"""Why a degree of tensor parallelism cannot be used, or not everywhere: sentences for `explain`.

Read off the graph: operators without a rule, reshapes that split a projection into heads, lookup tables, weight matrices. Nothing here
decides anything; the rule table does not offer what these sentences rule out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.ir.graph import Graph, Op, Parameter
from planner.ir.plan import Illegal
from planner.rules.table import has_rule
from planner.rules.view import reshape_groups

_RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
_PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")
_REACH = 12
"""Ops between the reshape and attention: rotary embeddings, norms of queries and keys, repeated KV heads."""
_LOOKUP = "aten.embedding.default"


@dataclass(frozen=True, slots=True, order=True)
class _Size:
    """A size that ranks would have to share: `role` says of what, `where` names the parameter."""

    role: str
    size: int
    where: str


def reasons(graph: Graph, degree: int) -> tuple[Illegal, ...]:
    """One sentence for each kind of operator or size that `degree` ranks cannot share; empty for degree 1."""
    if degree == 1:
        return ()
    missing = (f"no rule for {target}{where}: tensor parallelism is off" for target, where in _without_rule(graph))
    uneven = (size for size in (*_heads(graph), *_tables(graph), *_matrices(graph)) if size.size % degree)
    return tuple(Illegal(f"tp={degree}", why) for why in (*missing, *_sentences(uneven, degree)))


def _sentences(sizes: Iterable[_Size], degree: int) -> Iterator[str]:
    where: dict[tuple[str, int], list[str]] = {}
    for found in sizes:
        names = where.setdefault((found.role, found.size), [])
        if found.where not in names:
            names.append(found.where)
    for (role, size), names in where.items():
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        verb = "are" if role.endswith("heads") else "is"
        text = f"{size} {role}" if role.endswith("heads") else f"{role} {size}"
        yield f"{text} ({shown}) {verb} not divisible by tp {degree}"


def _without_rule(graph: Graph) -> Iterator[tuple[str, str]]:
    first = {op.target: op for op in reversed(graph.ops) if not has_rule(op.target)}
    for target, op in sorted(first.items()):
        yield target, f" in {graph.glob(op.module)}" if op.module else ""


def _heads(graph: Graph) -> Iterator[_Size]:
    """Dims that a reshape splits out of a projection; fewer than its siblings have makes them KV heads."""
    found = []
    for op in graph.ops:
        if op.target in _RESHAPES and (parameter := _projection(graph, op)) is not None and _attended(graph, op):
            for count in _split_sizes(graph, op):
                found.append((parameter, count))
    for parameter, count in found:
        parent = _parent(parameter)
        most = max(other for sibling, other in found if _parent(sibling) == parent)
        yield _Size("heads" if count == most else "KV heads", count, _shown(graph, parameter))


def _split_sizes(graph: Graph, op: Op) -> Iterator[int]:
    before, after = graph.by_name[op.inputs[0]].shape, graph.by_name[op.outputs[0]].shape
    for merged, split in reshape_groups(before, after):
        if merged == (len(before) - 1,) and len(split) > 1:
            yield after[split[0]]


def _projection(graph: Graph, op: Op) -> Parameter | None:
    """The weight of the linear layer whose output `op` reshapes."""
    source = graph.producer.get(op.inputs[0])
    while source is not None and (source.target in _RESHAPES or source.target in ("border", "aten.add.Tensor")):
        source = graph.producer.get(source.inputs[0])
    if source is None or source.target not in _PRODUCTS:
        return None
    return _weight(graph, source)


def _attended(graph: Graph, op: Op) -> bool:
    """Whether what `op` writes reaches an attention kernel or a batched product within a block's few steps."""
    seen, frontier = {op.name}, [op]
    for _ in range(_REACH):
        frontier = [
            reader for each in frontier for name in each.outputs for reader, _ in graph.consumers.get(name, ()) if reader.name not in seen
        ]
        seen.update(reader.name for reader in frontier)
        if any("dot_product" in reader.target or "bmm" in reader.target for reader in frontier):
            return True
    return False


def _weight(graph: Graph, product: Op) -> Parameter | None:
    """The parameter that a product multiplies by, directly or transposed."""
    parameters = {parameter.tensor: parameter for parameter in graph.parameters if len(parameter.shape) > 1}
    for name in reversed(product.inputs):
        if name in parameters:
            return parameters[name]
        producer = graph.producer.get(name)
        if producer is not None and producer.inputs and producer.inputs[0] in parameters:
            return parameters[producer.inputs[0]]
    return None


def _tables(graph: Graph) -> Iterator[_Size]:
    parameters = {parameter.tensor: parameter for parameter in graph.parameters}
    for op in graph.ops:
        if op.target == _LOOKUP and (parameter := parameters.get(op.inputs[0])) is not None:
            yield _Size("vocabulary", parameter.shape[0], _shown(graph, parameter))
            yield _Size("hidden size", parameter.shape[1], _shown(graph, parameter))


def _matrices(graph: Graph) -> Iterator[_Size]:
    tables = {op.inputs[0] for op in graph.ops if op.target == _LOOKUP}
    for op in graph.ops:
        if op.target in _PRODUCTS and (parameter := _weight(graph, op)) is not None and parameter.tensor not in tables:
            for size in parameter.shape[-2:]:
                yield _Size("weight dim", size, _shown(graph, parameter))


def _parent(parameter: Parameter) -> str:
    """`layers.0.attn` of `layers.0.attn.wk.weight`."""
    return parameter.fqn.rpartition(".")[0].rpartition(".")[0]


def _shown(graph: Graph, parameter: Parameter) -> str:
    return graph.glob(parameter.fqn.rpartition(".")[0]) or parameter.fqn
