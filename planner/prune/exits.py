"""The last copy of a repeated block hands on to what follows, not to another copy: its border may decide otherwise.

Where a region's carried output is made by a border, `split` puts a border of the last copy beside it, outside the region, and lets everything
after the region read that one. Without it the layout between two copies would also have to suit the loss. Exact: with equal choices on both
borders the graph means what it meant before.
"""

from __future__ import annotations

from dataclasses import replace

from planner.ir.graph import Graph, Op, Region


def split(graph: Graph) -> Graph:
    """`graph` with an exit border for every region whose carried outputs are read after it."""
    for region in graph.regions:
        for _, written in region.carried:
            if _is_read_after(graph, region, written) and graph.producer[written].border:
                graph = _with_exit(graph, region.glob, written)
    return graph


def _is_read_after(graph: Graph, region: Region, written: str) -> bool:
    return written in graph.outputs or any(op.name not in region.ops for op, _ in graph.consumers.get(written, ()))


def _with_exit(graph: Graph, glob: str, written: str) -> Graph:
    region = next(region for region in graph.regions if region.glob == glob)
    border = graph.producer[written]
    name = f"{written}@exit"
    first, last = region.copies[0], region.copies[-1]
    module, border_name = (text.replace(first, last, 1) for text in (border.module, border.border))
    leaving = replace(border, name=name, outputs=(name,), module=module, border=border_name)
    own = frozenset(region.ops)

    def after(op: Op) -> Op:
        names = tuple(name if tensor == written else tensor for tensor in op.inputs)
        return op if op.name in own or names == op.inputs else replace(op, inputs=names, saved=_renamed(op.saved, written, name))

    ops: list[Op] = []
    for op in graph.ops:
        ops.append(after(op))
        if op.name == region.ops[-1]:
            ops.append(leaving)
    # a carried tensor of the next region that is this one's output enters through the exit
    regions = tuple(
        replace(region, inner=(*region.inner, border.name))
        if other is region
        else replace(other, carried=tuple((_one(read, written, name), out) for read, out in other.carried))
        for other in graph.regions
    )
    tensors = (*graph.tensors, replace(graph.by_name[written], name=name))
    return replace(graph, ops=tuple(ops), tensors=tensors, outputs=_renamed(graph.outputs, written, name), regions=regions)


def _renamed(names: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(_one(name, old, new) for name in names)


def _one(name: str, old: str, new: str) -> str:
    return new if name == old else name
