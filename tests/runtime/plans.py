"""Plans written by hand for the model zoo's tiny models: placements and borders of tensor and sequence parallelism, and the rest by keyword."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.ir.batch import InputInfo
from planner.ir.fingerprint import Row, fingerprint
from planner.ir.mesh import Mesh
from planner.ir.placement import Partial, Placement, Replicate, Shard
from planner.ir.plan import (
    Activation,
    BlockInfo,
    Breakdown,
    ClusterInfo,
    Constraints,
    MemoryKinds,
    ModelInfo,
    Plan,
    Prediction,
    ScheduleInfo,
    Search,
    Stage,
)
from planner.runtime.check import model_rows

R, P = Replicate(), Partial()
BLOCK = {
    "attention.wq.weight": Shard(0),
    "attention.wk.weight": Shard(0),
    "attention.wv.weight": Shard(0),
    "attention.wq.bias": Shard(0),
    "attention.wk.bias": Shard(0),
    "attention.wv.bias": Shard(0),
    "attention.wo.weight": Shard(1),
    "mlp.up.weight": Shard(0),
    "mlp.up.bias": Shard(0),
    "mlp.gate.weight": Shard(0),
    "mlp.down.weight": Shard(1),
    "up.weight": Shard(0),
    "up.bias": Shard(0),
    "down.weight": Shard(1),
}
NORMS = ("attention_norm", "mlp_norm")


def tp_activations(module: nn.Module, *, sequence: bool, vocabulary: bool) -> dict[str, Activation]:
    """Borders of a Megatron plan: column then row per block; `sequence` keeps S(1) between blocks, `vocabulary` shards the table and the
    head by rows."""
    outer, dim = (Shard(1), Shard(1)) if sequence else (R, R)
    enter = Activation(outer, R, P, dim)
    leave = Activation(P, outer, dim, R)
    names = {name for name, _ in module.named_modules()}
    if "layers.0.attention" not in names:
        return {"layers.*.up:input": Activation(R, R, P, R), "layers.*.down:output": Activation(P, R, R, R)}
    borders = {f"layers.*.{norm}:output": enter for norm in NORMS}
    borders |= {"layers.*.attention.wo:output": leave, "layers.*.mlp.down:output": leave}
    if vocabulary:
        borders["embedding:output"] = leave
    elif sequence:
        borders["embedding:output"] = Activation(R, Shard(1), Shard(1), R)
    if sequence or vocabulary:
        borders["norm:output"] = Activation(outer, R, P if vocabulary else R, dim)
    return borders


def placement(fqn: str, *, vocabulary: bool) -> Placement:
    """Where a parameter lies along tp in a Megatron plan."""
    if vocabulary and fqn in ("embedding.weight", "head.weight"):
        return Shard(0)
    _, _, inside = fqn.partition("layers.")
    return BLOCK.get(inside.partition(".")[2], R) if inside else R


def make_plan(
    module: nn.Module,
    zoo: ModuleType,
    *,
    mesh: Mesh,
    zero: int = 0,
    microbatches: int = 2,
    global_batch: int = 8,
    sequence: bool = False,
    vocabulary: bool = False,
    recompute: str = "none",
    compute_dtype: str = "",
    stages: tuple[Stage, ...] = (Stage("", ("",)),),
    schedule: str = "1f1b",
) -> Plan:
    """A plan for `module`, whose `zoo` module makes its inputs; parameters that are not blocks' stay replicated along tp."""
    rows = model_rows(module)
    dtype = rows[0].dtype
    size = global_batch // mesh.dp // microbatches
    leaves = pytree.tree_flatten_with_path(zoo.inputs(size, module))[0]
    inputs = tuple(InputInfo((path[0].key,), tuple(leaf.shape), str(leaf.dtype)[6:]) for path, leaf in leaves if isinstance(leaf, Tensor))
    layers = tuple(name for name, _ in module.named_modules() if name.startswith("layers.") and name.count(".") == 1)
    tp = mesh.tp > 1
    dp = tuple(
        R if mesh.degree(axis) == 1 or (axis, zero) == ("dp_replicate", 0) or axis == "dp_replicate" else Shard(0)
        for axis in ("dp_replicate", "dp_shard")
    )
    placements = {row.tie: (*dp, placement(row.tie, vocabulary=vocabulary) if tp else R) for row in rows}
    activations = tp_activations(module, sequence=sequence, vocabulary=vocabulary) if tp else {}
    if sequence and mesh.pp > 1:
        activations["layers.*:output"] = Activation(Shard(1), Shard(1), Shard(1), Shard(1))
    return Plan(
        model=ModelInfo(
            name="tiny",
            fingerprint=fingerprint(rows),
            parameters=sum(p.numel() for p in module.parameters()),
            inputs=inputs,
            blocks=(BlockInfo("layers.*", layers),),
            dtype=dtype,
            compute_dtype=compute_dtype or dtype,
            reduce_dtype=dtype,
            tokens_per_sample=16,
            flop_per_sample=0,
            coverage=1.0,
            unmodelled=(),
        ),
        cluster=ClusterInfo("cpu-gloo", "", mesh.world_size, mesh.world_size, 2**30, False),
        mesh=mesh,
        stages=stages,
        parameters=tuple(sorted(placements.items())),
        activations=tuple(sorted(activations.items())),
        ties=ties(rows),
        buffers=tuple(name for name, _ in module.named_buffers()),
        rng="per_rank",
        recompute=(("layers.*", recompute),),
        offload=(),
        schedule=ScheduleInfo(schedule, microbatches, size, 1, zero, global_batch),
        semantics="exact",
        constraints=Constraints((), 0, "auto"),
        prediction=no_prediction(mesh.pp),
        search=Search(0, 0, 0, 0, 0, 0, 0.0, 0.0, "bound"),
        illegal=(),
        alternatives=(),
        provenance=(),
    )


def ties(rows: tuple[Row, ...]) -> tuple[tuple[str, ...], ...]:
    """Groups of names that share a parameter."""
    groups = (tuple(row.fqn for row in rows if row.tie == first) for first in dict.fromkeys(row.tie for row in rows))
    return tuple(group for group in groups if len(group) > 1)


def no_prediction(stages: int) -> Prediction:
    """Zeros: these plans are run, not priced."""
    return Prediction(
        step_time_s=0.0,
        step_time_low_s=0.0,
        step_time_high_s=0.0,
        samples_per_s=0.0,
        tokens_per_s=0.0,
        mfu=0.0,
        bubble_of_total=0.0,
        breakdown_s=Breakdown(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        peak_memory_bytes=(0,) * stages,
        memory_bytes=(MemoryKinds(0, 0, 0, 0, 0, 0, 0),) * stages,
        collectives=((),) * stages,
    )
