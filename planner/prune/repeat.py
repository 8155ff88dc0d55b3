"""TAP's fold: consecutive blocks with the same structure share one set of decisions, with multiplicity.

Scopes first: numbered siblings (`layers.0`, `layers.1`, ...) are the candidates, the outermost repetition wins. Then verification: a block's
signature lists its ops with targets, arguments, module names relative to the block, and where every input comes from, by position; two blocks
are copies only if their signatures are equal, forward and backward. A run of copies is folded if each reads, at every position, either the same
outside tensor as the first or what the copy before it wrote, and nothing else reads what a copy wrote, except after the last. The fold is exact
for any cost that depends on what the signature holds; what it adds is that all copies are decided alike. Sums of gradients are left out of
the signature, because a tensor that all copies read collects its gradient in one sum less than there are copies: the first copy's sums count.

Source: Shi et al., arXiv:2302.00247 (names and min_dup); the structural check is ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.ir.graph import Graph, Op, Region
from planner.ir.names import block_glob

_SUM = "aten.add.Tensor"
_COPY = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True, slots=True)
class _Block:
    """One scope: its ops, the outside tensors it reads in order of first use, and all tensors it writes."""

    fqn: str
    ops: tuple[Op, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    signature: tuple[object, ...]


def fold(graph: Graph, *, min_dup: int = 2) -> Graph:
    """`graph` with every run of at least `min_dup` equal consecutive blocks reduced to its first copy and a Region."""
    while (run := _first_run(graph, min_dup)) is not None:
        graph = _folded(graph, run)
    return graph


def _first_run(graph: Graph, min_dup: int) -> tuple[tuple[_Block, ...], tuple[tuple[str, str], ...]] | None:
    for siblings in _families(graph):
        for start in range(len(siblings)):
            for first in _first_copies(graph, siblings[start]):
                blocks = (first, *siblings[start + 1 :])
                length, carried = _chain(graph, blocks)
                if length >= max(2, min_dup):
                    return blocks[:length], carried
    return None


def _first_copies(graph: Graph, block: _Block) -> Iterator[_Block]:
    """The block as it is, and without borders at its entrance: what the first copy reads may be made by an operator, where later ones read
    the border that the copy before ends with."""
    yield block
    inner = tuple(op for op in block.ops if not op.border.startswith(f"{block.fqn}:input"))
    if len(inner) < len(block.ops):
        yield _block_of(graph, block.fqn, inner)


def _families(graph: Graph) -> Iterator[tuple[_Block, ...]]:
    """Numbered siblings that are outside every region, outermost first, in the order of execution."""
    folded = tuple(copy for region in graph.regions for copy in region.copies)
    scopes: dict[str, dict[str, None]] = {}
    for op in graph.ops:
        parts = op.module.split(".")
        for depth in range(1, len(parts) + 1):
            fqn = ".".join(parts[:depth])
            match = _COPY.fullmatch(parts[depth - 1])
            if match and not any(fqn == copy or fqn.startswith(copy + ".") or copy.startswith(fqn + ".") for copy in folded):
                scopes.setdefault(".".join((*parts[: depth - 1], match[1] + "*")), {})[fqn] = None
    for family in sorted(scopes, key=lambda name: name.count(".")):
        if len(scopes[family]) > 1:
            yield tuple(_block(graph, fqn) for fqn in scopes[family])


def _block(graph: Graph, fqn: str) -> _Block:
    return _block_of(graph, fqn, tuple(op for op in graph.ops if op.module == fqn or op.module.startswith(fqn + ".")))


def _block_of(graph: Graph, fqn: str, ops: tuple[Op, ...]) -> _Block:
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    parameters = {p.tensor: p.fqn for p in graph.parameters} | {b.tensor: b.fqn for b in graph.buffers}
    lines: list[tuple[object, ...]] = []
    for op in ops:
        sources = [_source(graph, name, parameters, fqn, reads, writes) for name in op.inputs]
        for name in op.outputs:
            writes.setdefault(name, len(writes))
        lines.append((op.target, op.module[len(fqn) :], op.args, op.flop, op.border[len(fqn) :], tuple(sources), _shapes(graph, op)))
        lines.extend((b.target, b.args, b.flop, _shapes(graph, b)) for b in graph.backward_of.get(op.name, ()) if b.target != _SUM)
        lines.append(tuple(writes.get(name, -1) for name in op.saved))
    return _Block(fqn, ops, tuple(reads), tuple(writes), tuple(lines))


def _source(
    graph: Graph, name: str, parameters: Mapping[str, str], fqn: str, reads: dict[str, int], writes: Mapping[str, int]
) -> tuple[object, ...]:
    if name in writes:
        return ("inside", writes[name])
    if parameters.get(name, "").startswith(fqn + "."):
        return ("own", parameters[name][len(fqn) :])
    return ("outside", reads.setdefault(name, len(reads)))


def _shapes(graph: Graph, op: Op) -> tuple[object, ...]:
    tensors = [graph.by_name[name] for name in (*op.inputs, *op.outputs)]
    return tuple((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in tensors)


def _chain(graph: Graph, blocks: Sequence[_Block]) -> tuple[int, tuple[tuple[str, str], ...]]:
    """How many of `blocks`, from the first, are copies in a chain, and what they carry."""
    first, length = blocks[0], 1
    links: dict[int, int] | None = None
    while length < len(blocks):
        found = _linked(blocks[length - 1], blocks[length], first)
        if found is None or (links is not None and found != links) or not found:
            break
        links = found
        length += 1
    while length > 1 and not _closed(graph, blocks[:length], links or {}):
        length -= 1
    return length, tuple((first.reads[read], first.writes[written]) for read, written in (links or {}).items())


def _linked(before: _Block, after: _Block, first: _Block) -> dict[int, int] | None:
    """Positions among the reads of `after` that are writes of `before`; None if they are not copies of one chain."""
    if before.signature != after.signature or len(before.reads) != len(after.reads):
        return None
    links = {}
    for index, name in enumerate(after.reads):
        if name in before.writes:
            links[index] = before.writes.index(name)
        elif name != first.reads[index]:
            return None
    return links


def _closed(graph: Graph, blocks: Sequence[_Block], links: Mapping[int, int]) -> bool:
    """Whether what a copy writes is read only by itself, by the next copy where it is carried, and by anyone after the last."""
    for block, following in pairwise(blocks):
        own, next_ops = {op.name for op in block.ops}, {op.name for op in following.ops}
        for position, name in enumerate(block.writes):
            readers = {op.name for op, _ in graph.consumers.get(name, ())} - own
            if name in graph.outputs or name == graph.loss or not readers <= (next_ops if position in links.values() else set()):
                return False
    carried = set(links.values())
    outside = {
        name for name in blocks[-1].writes if any(op.name not in {o.name for o in blocks[-1].ops} for op, _ in graph.consumers.get(name, ()))
    }
    return all(blocks[-1].writes.index(name) in carried for name in outside)


def _folded(graph: Graph, run: tuple[tuple[_Block, ...], tuple[tuple[str, str], ...]]) -> Graph:
    blocks, carried = run
    first, last = blocks[0], blocks[-1]
    gone = {op.name for block in blocks[1:] for op in block.ops}
    renamed = dict(zip(last.writes, first.writes, strict=True))
    dropped = tuple(block.fqn + "." for block in blocks[1:])
    stem = first.fqn.rstrip("0123456789")
    siblings = {stem + op.module.removeprefix(stem).partition(".")[0] for op in graph.ops if op.module.startswith(stem)}
    glob = block_glob(stem, tuple(int(block.fqn.removeprefix(stem)) for block in blocks), alone=siblings <= {block.fqn for block in blocks})

    def kept(op: Op) -> Op:
        names = tuple(renamed.get(name, name) for name in op.inputs)
        return op if names == op.inputs else replace(op, inputs=names)

    ops = tuple(kept(op) for op in graph.ops if op.name not in gone)
    backward = tuple(kept(op) for op in graph.backward if op.origin not in gone)
    region = Region(glob, tuple(block.fqn for block in blocks), tuple(op.name for op in first.ops), carried)
    used = {name for op in (*ops, *backward) for name in (*op.inputs, *op.outputs, *op.saved)}
    parameters = tuple(p for p in graph.parameters if not p.fqn.startswith(dropped))
    buffers = tuple(b for b in graph.buffers if not b.fqn.startswith(dropped))
    used |= {p.tensor for p in parameters} | {b.tensor for b in buffers} | {*graph.inputs, graph.loss}
    bases = {graph.by_name[name].base for name in used}
    tensors = tuple(t for t in graph.tensors if t.name in used or t.name in bases)
    outputs = tuple(renamed.get(name, name) for name in graph.outputs)
    return replace(graph, ops=ops, backward=backward, tensors=tensors, parameters=parameters, buffers=buffers, outputs=outputs,
                   loss=renamed.get(graph.loss, graph.loss), regions=(*graph.regions, region))  # fmt: skip
