"""Borders that carry no choice are removed: a graph in, a smaller graph out.

A redistribution makes sense once per tensor. What stays is one border per tensor that a module makes, the innermost one, and input borders
of tensors that functional operators or the batch made:

    of a module called more than once in a forward          all its borders go
    a border whose input is a border's output, a parameter or a buffer    goes
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from planner.ir.graph import Graph, Op, Region, Tensor


def simplify(graph: Graph, *, repeated: Set[str] = frozenset()) -> Graph:
    """The graph without redundant borders; `repeated` are the FQNs of modules called more than once."""
    renamed: dict[str, str] = {}
    settled: set[str] = {one.tensor for one in graph.parameters} | {one.tensor for one in graph.buffers}
    dropped: set[str] = set()
    for op in graph.ops:
        if op.target != "border":
            continue
        source = renamed.get(op.inputs[0], op.inputs[0])
        if op.module in repeated or source in settled:
            renamed[op.outputs[0]] = source
            dropped.add(op.name)
        else:
            settled.add(op.outputs[0])
    return _without(graph, dropped=dropped, renamed=renamed)


def _without(graph: Graph, *, dropped: Set[str], renamed: dict[str, str]) -> Graph:
    def name(old: str) -> str:
        return renamed.get(old, old)

    def names(old: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name(one) for one in old)

    def op(old: Op) -> Op:
        return replace(old, inputs=names(old.inputs), saved=names(old.saved))

    def tensor(old: Tensor) -> Tensor:
        return replace(old, base=name(old.base))

    def region(old: Region) -> Region:
        carried = tuple((name(read), name(written)) for read, written in old.carried)
        return replace(old, ops=tuple(one for one in old.ops if one not in dropped), carried=carried)

    return replace(
        graph,
        ops=tuple(op(old) for old in graph.ops if old.name not in dropped),
        backward=tuple(op(old) for old in graph.backward),
        tensors=tuple(tensor(old) for old in graph.tensors if old.name not in renamed),
        regions=tuple(region(old) for old in graph.regions),
        outputs=names(graph.outputs),
        loss=name(graph.loss),
    )
