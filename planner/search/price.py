"""What one op costs on this cluster, for each way of running it. While planning, only this file calls the formulas of `costmodels`.

Per op and layout: seconds = roofline(FLOPs of this rank, bytes this rank reads and writes) forward, the same over its backward ops, and
its collectives. An op that only makes views runs no kernel. Eager execution is assumed: every op reads its inputs from memory and writes its
outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from costmodels.collective import Group, collective_s, group
from costmodels.compute import op_s
from costmodels.hardware import Cluster
from planner.ir.graph import Graph, Op, Tensor
from planner.ir.mesh import Mesh
from planner.ir.placement import Layout
from planner.ir.strategy import Collective, Strategy


@dataclass(frozen=True, slots=True)
class OpPrice:
    """Seconds of one op for one microbatch on one rank; `working_bytes` is what its largest backward op touches."""

    forward_s: float
    backward_s: float
    forward_tp_s: float
    backward_tp_s: float
    working_bytes: float


def local_bytes(tensor: Tensor, layout: Layout, degree: int) -> float:
    """Bytes of this rank's part."""
    return tensor.nbytes / degree if layout.value.is_shard else tensor.nbytes


def runs_kernel(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """False for borders and for ops whose outputs are all views of something older."""
    return not op.border and any(tensors[name].base == name for name in op.outputs)


@dataclass(frozen=True, slots=True)
class Pricer:
    """Prices ops of one graph at one tensor-parallel degree."""

    graph: Graph
    cluster: Cluster
    degree: int

    def op(self, op: Op, strategy: Strategy) -> OpPrice:
        """The price of running `op` by `strategy`, without multiplicity."""
        tensors = self.graph.by_name
        names = (*op.inputs, *op.outputs)
        layouts = (*strategy.inputs, *strategy.outputs)
        whole = sum(tensors[name].nbytes for name in names)
        local = sum(local_bytes(tensors[name], layout, self.degree) for name, layout in zip(names, layouts, strict=True))
        share, work = local / whole if whole else 1.0, 1 / self.degree if strategy.divided else 1.0
        dtype = tensors[op.outputs[0]].dtype if op.outputs else "float32"
        forward_s = op_s(op.flop * work, local, dtype=dtype, device=self.cluster.device) if runs_kernel(op, tensors) else 0.0
        backward_s, working = 0.0, 0.0
        for other in self.graph.backward_of.get(op.name, ()):
            if not runs_kernel(other, tensors):
                continue
            touched = share * sum(tensors[name].nbytes for name in (*other.inputs, *other.outputs))
            kernel = tensors[other.outputs[0]].dtype
            backward_s += op_s(other.flop * work, touched, dtype=kernel, device=self.cluster.device)
            working = max(working, touched)
        return OpPrice(
            forward_s,
            backward_s,
            self.collectives_s(c for c in strategy.collectives if c.phase == "forward"),
            self.collectives_s(c for c in strategy.collectives if c.phase == "backward"),
            working,
        )

    def collectives_s(self, collectives: Iterable[Collective]) -> float:
        """Seconds of tensor-parallel collectives, one after the other."""
        ranks = group(self.cluster, size=self.degree, stride=1)
        return sum(c.count * collective_s(c.kind, c.nbytes, group=ranks, cluster=self.cluster) for c in collectives)

    def all_reduce_s(self, nbytes: float) -> float:
        """Seconds to all_reduce a parameter's gradient over tp."""
        return collective_s("all_reduce", nbytes, group=group(self.cluster, size=self.degree, stride=1), cluster=self.cluster)


def axis_group(cluster: Cluster, mesh: Mesh, axes: Sequence[str]) -> Group:
    """The process group over neighbouring mesh axes, innermost axis last."""
    size = 1
    for axis in axes:
        size *= mesh.degree(axis)
    return group(cluster, size=size, stride=mesh.stride(axes[-1]))
