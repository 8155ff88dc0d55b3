"""What one op costs on this cluster, for each way of running it. While planning, only this file calls the formulas of `costmodels`.

Per op and layout: seconds = roofline(FLOPs of this rank, bytes this rank reads and writes) forward, the same over its backward ops, and
its collectives. An op that only makes views runs no kernel. Eager execution is assumed: every op reads its inputs from memory and writes its
outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

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
class Kernel:
    """Work of one kernel on the whole tensors."""

    flop: int
    nbytes: int
    dtype: str


def kernels(graph: Graph) -> Mapping[str, tuple[tuple[Kernel, ...], tuple[Kernel, ...]]]:
    """The forward and backward kernels of every forward op, by its name."""

    def of(ops: Iterable[Op]) -> tuple[Kernel, ...]:
        tensors = graph.by_name
        running = (op for op in ops if runs_kernel(op, tensors))
        return tuple(
            Kernel(op.flop, sum(tensors[name].nbytes for name in (*op.inputs, *op.outputs)), tensors[op.outputs[0]].dtype) for op in running
        )

    return {op.name: (of((op,)), of(graph.backward_of.get(op.name, ()))) for op in graph.ops}


class Pricer:
    """Prices ops of one graph at one tensor-parallel degree; equal questions are answered once."""

    def __init__(self, graph: Graph, cluster: Cluster, degree: int, work: Mapping[str, tuple[tuple[Kernel, ...], tuple[Kernel, ...]]]) -> None:
        self.graph = graph
        self.cluster = cluster
        self.degree = degree
        self.work = work
        self.compute_s = cache(self._compute_s)
        self.collective_s = cache(self._collective_s)

    def op(self, op: Op, strategy: Strategy) -> OpPrice:
        """The price of running `op` by `strategy`, without multiplicity."""
        tensors = self.graph.by_name
        layouts = (*strategy.inputs, *strategy.outputs)
        whole = local = 0.0
        for name, layout in zip((*op.inputs, *op.outputs), layouts, strict=True):
            nbytes = tensors[name].nbytes
            whole += nbytes
            local += nbytes / self.degree if layout.value.is_shard else nbytes
        forward_s, backward_s, working = self.compute_s(op.name, 1 / self.degree if strategy.divided else 1.0, local / whole if whole else 1.0)
        communication = {"forward": 0.0, "backward": 0.0}
        for collective in strategy.collectives:
            communication[collective.phase] += self.collective_s(collective)
        return OpPrice(forward_s, backward_s, communication["forward"], communication["backward"], working)

    def ideal(self, op: Op) -> tuple[float, float]:
        """Seconds forward and backward if every rank had exactly its share of work and bytes: a bound for every strategy."""
        forward_s, backward_s, _ = self.compute_s(op.name, 1 / self.degree, 1 / self.degree)
        return forward_s, backward_s

    def _compute_s(self, name: str, work: float, share: float) -> tuple[float, float, float]:
        """Seconds forward and backward and the largest bytes of a backward kernel, at these shares of FLOPs and of bytes."""
        forward, backward = self.work[name]
        seconds = [
            sum(op_s(k.flop * work, k.nbytes * share, dtype=k.dtype, device=self.cluster.device) for k in kernels)
            for kernels in (forward, backward)
        ]
        return seconds[0], seconds[1], share * max((k.nbytes for k in backward), default=0)

    def _collective_s(self, collective: Collective) -> float:
        ranks = group(self.cluster, size=self.degree, stride=1)
        return collective.count * collective_s(collective.kind, collective.nbytes, group=ranks, cluster=self.cluster)

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
        sharding=Sharding(candidate.zero, mesh.shards, accumulates, dp_replicate=mesh.dp_replicate),
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
    shards = candidate.mesh.shards if candidate.zero else 1
    weight, gradient, states = STATE_PRESETS["torch-adamw"].bytes_of(precision.param_bytes)
    mine = trainable_numel / shards
    return optimizer_s(parameter_bytes=mine * weight, gradient_bytes=mine * gradient, optimizer_bytes=mine * states, device=cluster.device)


def mfu_of(flop: float, step_s: float, cluster: Cluster, dtype: str) -> float:
    """Model FLOPs utilisation of the whole cluster."""
    return mfu(flop, step_s=step_s, devices=cluster.devices, dtype=dtype, device=cluster.device)
