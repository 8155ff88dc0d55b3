"""What a plan computes, next to one process with the global batch: the same, or the same but for what depends on how the batch is divided.

Batch norm does. Its statistics run over the samples that one call sees, which are those of one microbatch on one data-parallel rank.
"""

from __future__ import annotations

from planner.ir.graph import Graph, Op

EXACT = "exact"
_BATCH_NORMS = (
    "aten.native_batch_norm.",
    "aten._native_batch_norm_legit.",
    "aten._native_batch_norm_legit_functional.",
    "aten.cudnn_batch_norm.",
    "aten._batch_norm_with_update.",
)
_TRAINING = 5
"""Position of the flag among the arguments of each of these, but the last, which only exists in training."""


def semantics(graph: Graph, *, parts: int) -> str:
    """How a step with the global batch in `parts` pieces (microbatches x data-parallel ranks) relates to a step of one process.

    `graph` must be recorded with at least two samples.
    """
    norms = {op.module: graph.multiplicity(op) for op in graph.ops if mixes_samples(graph, op)}
    if parts == 1 or not norms:
        return EXACT
    count, first = sum(norms.values()), min(norms)
    which = f"{count} batch norms ({first} and others) take" if count > 1 else f"batch norm {first} takes"
    return f"exact but for batch statistics: {which} them over one microbatch of one rank, not over the global batch"


def mixes_samples(graph: Graph, op: Op) -> bool:
    """Whether the op norms over the samples of a batch. Instance norm, which does not, is a batch norm of one sample with more channels."""
    if not op.target.startswith(_BATCH_NORMS) or graph.by_name[op.inputs[0]].shape[0] == 1:
        return False
    return op.target.startswith("aten._batch_norm_with_update.") or bool(op.args[_TRAINING])
