"""From folded calls to the graph's regions, and the checks that only the whole recording allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner.ir.graph import Graph, Op, Region
from planner.ir.names import block_glob
from planner.trace.blocks import Run
from planner.trace.fold import Chain
from planner.trace.record import Record


def region_of_chain(chain: Chain, record: Record) -> Region:
    """The region of a chain of copies. An input border of something handed on stands before the first copy only, so it is not part of it."""
    prefix = chain.run.prefix
    numbers = tuple(int(copy.removeprefix(prefix)) for copy in chain.copies)
    siblings = {prefix + op.module.removeprefix(prefix).partition(".")[0] for op in record.forward if op.module.startswith(prefix)}
    return Region(
        glob=block_glob(prefix, numbers, alone=siblings <= set(chain.copies)),
        copies=tuple(chain.copies),
        ops=tuple(op.name for op in _body(chain, record.forward)),
        carried=tuple((chain.read[index], chain.written[output]) for index, output in sorted(chain.carried.items())),
    )


def reads_hidden(graph: Graph, chain: Chain) -> bool:
    """Whether tensors pass into or out of the first copy other than as arguments and outputs.

    Parameters and buffers are no activations and may come from anywhere: every copy would find the same object there, because it is equal
    to the first one in code and attributes.
    """
    body = _body(chain, graph.ops)
    inside = {name for op in body for name in op.outputs}
    body_names = {op.name for op in body}
    invariant = {chain.raw[index] for index in chain.raw if index not in chain.carried}
    allowed = inside | invariant | set(chain.read.values())
    if any(name in graph.producer and name not in allowed for op in body for name in op.inputs):
        return True
    visible = set(chain.written.values())
    outside = (name for op in graph.ops if op.name not in body_names for name in op.inputs)
    return any(name in inside and name not in visible for name in (*outside, *graph.outputs, graph.loss))


def barren(chains: Sequence[Chain], runs: Iterable[Run]) -> frozenset[str]:
    """Prefixes of runs that turned out to be no chain and kept runs inside their blocks from being folded."""
    fruitful = {chain.run.prefix for chain in chains if len(chain.copies) > 1}
    tried = {chain.run for chain in chains} - {chain.run for chain in chains if chain.run.prefix in fruitful}
    inner = [run.prefix for run in runs]
    return frozenset(run.prefix for run in tried if any(prefix.startswith(f"{fqn}.") for fqn in run.fqns for prefix in inner))


def outside_origin(record: Record, chains: Sequence[Chain]) -> tuple[Op, ...]:
    """The backward ops, with one correction to their origins.

    A tensor that all copies read, or that is read outside as well, collects its gradient in a sum that runs once per copy; the sums of the
    copies that were left out are recorded outside the region, and the one in the first copy that joins them to its own belongs there too.
    """
    region = {op.name: chain.copies[0] for chain in chains for op in _body(chain, record.forward)}
    made_in: dict[str, str | None] = {name: region.get(op.origin) for op in record.backward for name in op.outputs}
    handed = {name for chain in chains for name in chain.handed}
    arriving = {(chain.copies[0], name) for chain in chains for name in chain.arriving}
    corrected = []
    for op in record.backward:
        block = region.get(op.origin)
        joins = block is not None and op.target == "aten.add.Tensor"
        from_outside = (name in handed or (made_in.get(name, block) != block and (block, name) not in arriving) for name in op.inputs)
        corrected.append(replace(op, origin="") if joins and any(from_outside) else op)
    return tuple(corrected)


def _body(chain: Chain, ops: Sequence[Op]) -> list[Op]:
    entrances = {chain.read[index] for index in chain.carried if chain.read[index] != chain.raw[index]}
    return [op for op in ops[chain.start : chain.end] if not entrances & set(op.outputs)]
