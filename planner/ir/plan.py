"""The plan: everything a training job needs to know, and why it was chosen. `plan_json` writes and reads the file.

Names are FQNs; a `*` stands for the copies of a repeated block (`layers.*.wq.weight`), as in `ModelInfo.blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.batch import InputInfo
from planner.ir.mesh import Mesh
from planner.ir.placement import Placement
from planner.ir.strategy import Collective

FORMAT = "autopar-plan/1"

PLACEMENT_AXES = ("dp_replicate", "dp_shard", "tp")
"""The mesh axes along which a parameter has a placement, in the order of the lists in the file."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`fingerprint` is `planner.ir.fingerprint.fingerprint`; `blocks` are the repeated blocks (glob, first copy, count): they are the
    units of fully_shard and recompute. `dtype` is that of the parameters, `compute_dtype` that of forward and backward, `reduce_dtype` that
    of gradient reductions; `tokens_per_sample` is 0 where inputs are not token ids. `inputs` are the tensors of one microbatch."""

    name: str
    fingerprint: str
    parameters: int
    inputs: tuple[InputInfo, ...]
    blocks: tuple[BlockInfo, ...]
    dtype: str
    compute_dtype: str
    reduce_dtype: str
    tokens_per_sample: int
    flop_per_sample: int
    coverage: float
    unmodelled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A repeated block: `glob` "layers.*" stands for `copies`."""

    glob: str
    copies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What was planned for. `digest` covers the whole cluster description."""

    name: str
    digest: str
    devices: int
    devices_per_node: int
    memory_bytes: int
    calibrated: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline stage: it begins at the call of module `begin` (empty for the first) and runs `modules` (globs expanded, top level)."""

    begin: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Activation:
    """A border where the tensor changes placement along tp: made as `value_from` and handed on as `value`; its gradient arrives as
    `grad_from` and is handed back as `grad`. Listed are the borders that change something and those at stage cuts that are not R/R.
    A border is named `FQN:input` or `FQN:output` followed by the pytree path where the value is not a single tensor:
    `layers.*.attention_norm:output`, `encoder:input['mask']`, `:output[0]` (the empty FQN is the whole model)."""

    value_from: Placement
    value: Placement
    grad_from: Placement
    grad: Placement


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """`microbatch_size` is samples per data-parallel rank and microbatch; `zero` is 0-3 as in the execution rule: 0 replicate, 1 sharded
    without reshard and gradients reduced on the last microbatch, 2 the same and reduced every microbatch, 3 resharded after forward."""

    name: str
    microbatches: int
    microbatch_size: int
    virtual: int
    zero: int
    global_batch: int


@dataclass(frozen=True, slots=True)
class MemoryKinds:
    """Bytes on one rank of a stage, at the peak."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    temporary: int
    reserve: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers + self.temporary + self.reserve


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the step time goes, on the slowest stage; the parts add up to the step time. Communication counts what is not hidden."""

    compute: float
    recompute: float
    tp_communication: float
    dp_communication: float
    pp_communication: float
    bubble: float
    optimizer: float

    @property
    def total(self) -> float:
        return (
            self.compute + self.recompute + self.tp_communication + self.dp_communication + self.pp_communication + self.bubble + self.optimizer
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """`collectives[s]` lists what one rank of stage s runs in a step. `mfu` counts model FLOPs, without recompute, against peak.
    `step_time_low_s` and `step_time_high_s` are the error bar; `bubble_of_total` is idle time over step time."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    samples_per_s: float
    tokens_per_s: float
    mfu: float
    bubble_of_total: float
    breakdown_s: Breakdown
    peak_memory_bytes: tuple[int, ...]
    memory_bytes: tuple[MemoryKinds, ...]
    collectives: tuple[tuple[Collective, ...], ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What the search did: counts of candidates, the proven lower bound on the step time of any plan, and the gap to it."""

    candidates: int
    illegal: int
    bounded_away: int
    out_of_memory: int
    solved: int
    variables: int
    bound_s: float
    gap: float
    ended_by: str


@dataclass(frozen=True, slots=True)
class Illegal:
    """A family of candidates ruled out: `what` ("tp=16"), `why` ("8 KV heads are not divisible by 16")."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """A runner-up and the reason it lost."""

    mesh: Mesh
    schedule: ScheduleInfo
    recompute: str
    step_time_s: float
    peak_memory_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the user asked for; empty mesh means any."""

    mesh: tuple[tuple[str, int], ...]
    memory_bytes: int
    recompute: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan. `parameters` has one placement per axis of PLACEMENT_AXES, by glob. `recompute` maps a block glob to "none" or "full"."""

    model: ModelInfo
    cluster: ClusterInfo
    mesh: Mesh
    stages: tuple[Stage, ...]
    parameters: tuple[tuple[str, tuple[Placement, ...]], ...]
    activations: tuple[tuple[str, Activation], ...]
    ties: tuple[tuple[str, ...], ...]
    buffers: tuple[str, ...]
    rng: str
    recompute: tuple[tuple[str, str], ...]
    offload: tuple[tuple[str, str], ...]
    schedule: ScheduleInfo
    semantics: str
    constraints: Constraints
    prediction: Prediction
    search: Search
    illegal: tuple[Illegal, ...]
    alternatives: tuple[Alternative, ...]
    provenance: tuple[tuple[str, str], ...]
