"""What one op costs on this cluster, for each way of running it. While planning, only this file calls the formulas of `costmodels`.

Per op and layout: seconds = roofline(FLOPs of this rank, bytes this rank reads and writes) forward, the same over its backward ops, and
its collectives. An op that only makes views runs no kernel. Eager execution is assumed: every op reads its inputs from memory and writes its
outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from costmodels.collective import Group, collective_s, group, p2p_s
from costmodels.compute import mfu, op_s
from costmodels.hardware import Cluster
from costmodels.memory import STATE_PRESETS, Sharding, Weights, reserve_bytes, state_bytes
from costmodels.memory import Precision as Precision
from costmodels.step import exposed_s as left_over_s
from costmodels.step import optimizer_s, pipeline_s
from planner.ir.graph import Graph, Op, Tensor
from planner.ir.mesh import Mesh
from planner.ir.placement import Layout
from planner.ir.plan import MemoryKinds
from planner.ir.strategy import Collective, Strategy
from planner.search.candidates import Candidate

OVERLAP = 0.9
"""The part of compute beside which a collective makes progress: both share memory bandwidth and a few multiprocessors. An assumption,
until a profile says otherwise."""


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

    def ideal(self, op: Op) -> tuple[float, float]:
        """Seconds forward and backward if every rank had exactly its share of work and bytes: a bound for every strategy."""
        tensors, device = self.graph.by_name, self.cluster.device
        seconds = []
        for ops in ((op,), self.graph.backward_of.get(op.name, ())):
            total = 0.0
            for one in ops:
                if runs_kernel(one, tensors):
                    nbytes = sum(tensors[name].nbytes for name in (*one.inputs, *one.outputs))
                    total += op_s(one.flop / self.degree, nbytes / self.degree, dtype=tensors[one.outputs[0]].dtype, device=device)
            seconds.append(total)
        return seconds[0], seconds[1]

    def collectives_s(self, collectives: Iterable[Collective]) -> float:
        """Seconds of tensor-parallel collectives, one after the other."""
        ranks = group(self.cluster, size=self.degree, stride=1)
        return sum(c.count * collective_s(c.kind, c.nbytes, group=ranks, cluster=self.cluster) for c in collectives)

    def all_reduce_s(self, nbytes: float) -> float:
        """Seconds to all_reduce a parameter's gradient over tp."""
        return collective_s("all_reduce", nbytes, group=group(self.cluster, size=self.degree, stride=1), cluster=self.cluster)


def traffic_s(collectives: Iterable[Collective], cluster: Cluster, mesh: Mesh) -> float:
    """Seconds of collectives along mesh axes, one after the other."""
    return sum(c.count * collective_s(c.kind, c.nbytes, group=axis_group(cluster, mesh, c.axis), cluster=cluster) for c in collectives)


def axis_group(cluster: Cluster, mesh: Mesh, axis: str) -> Group:
    """The process group along one mesh axis."""
    return group(cluster, size=mesh.degree(axis), stride=mesh.stride(axis))


def stages_bound_s(forward_s: Sequence[float], backward_s: Sequence[float], microbatches: int) -> float:
    """The least time of a pipeline with these stages, whatever its schedule."""
    return pipeline_s(forward_s, backward_s, microbatches)


def peer_s(nbytes: float, mesh: Mesh, cluster: Cluster) -> float:
    """Seconds to hand `nbytes` to the next pipeline stage; it is in the same node if all stages are."""
    if not nbytes:
        return 0.0
    return p2p_s(nbytes, same_node=mesh.world_size <= cluster.devices_per_node, cluster=cluster)


def exposed_s(communication_s: Sequence[float], compute_s: float) -> float:
    """What a pass over several units leaves exposed: the first transfer, and of the others what the compute does not hide."""
    if not communication_s:
        return 0.0
    share = compute_s * (len(communication_s) - 1) / len(communication_s)
    return communication_s[0] + left_over_s(sum(communication_s[1:]), share, OVERLAP)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Elements and bytes that one rank of a stage holds. `block_numel` is the largest unit that is gathered at once."""

    numel: int
    trainable_numel: int
    block_numel: int
    activation_bytes: float
    temporary_bytes: float
    buffer_bytes: int


def memory_kinds(stage: StageMemory, candidate: Candidate, cluster: Cluster, precision: Precision) -> MemoryKinds:
    """Bytes on one rank by kind, at the peak."""
    mesh = candidate.mesh
    accumulates = candidate.zero < 2 and candidate.microbatches > 1
    state = state_bytes(
        Weights(stage.numel, stage.trainable_numel, stage.block_numel),
        precision=precision,
        sharding=Sharding(candidate.zero, mesh.dp_shard, accumulates, dp_replicate=mesh.dp_replicate),
    )
    return MemoryKinds(
        parameters=state.parameters,
        gradients=state.gradients,
        optimizer=state.optimizer,
        activations=round(stage.activation_bytes),
        buffers=stage.buffer_bytes,
        temporary=round(stage.temporary_bytes),
        reserve=reserve_bytes(cluster.device),
    )


def optimizer_step_s(trainable_numel: int, candidate: Candidate, cluster: Cluster, precision: Precision) -> float:
    """Seconds of AdamW on this rank's shard of `trainable_numel` elements."""
    shards = candidate.mesh.dp_shard if candidate.zero else 1
    weight, gradient, states = STATE_PRESETS["torch-adamw"].bytes_of(precision.param_bytes)
    mine = trainable_numel / shards
    return optimizer_s(parameter_bytes=mine * weight, gradient_bytes=mine * gradient, optimizer_bytes=mine * states, device=cluster.device)


def mfu_of(flop: float, step_s: float, cluster: Cluster, dtype: str) -> float:
    """Model FLOPs utilisation of the whole cluster."""
    return mfu(flop, step_s=step_s, devices=cluster.devices, dtype=dtype, device=cluster.device)
