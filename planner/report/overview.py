"""What the plan is, in a dozen lines."""

from __future__ import annotations

from rich.console import Group

from planner.ir.plan import Plan
from planner.report import units
from planner.report.table import facts

ZERO = {
    0: "nothing sharded, gradients all-reduced",
    1: "optimizer states sharded, gradients reduced on the last microbatch",
    2: "optimizer states and gradients sharded",
    3: "parameters, gradients and optimizer states sharded",
}
"""What a ZeRO level shards over dp_shard."""


def overview(plan: Plan) -> Group:
    """Model, machine, mesh and the headline figures."""
    rows = [
        ("model", _model(plan)),
        ("cluster", _cluster(plan)),
        ("mesh", str(plan.mesh)),
        ("batch", _batch(plan)),
        ("schedule", _schedule(plan)),
        ("recompute", ", ".join(f"{glob} {policy}" for glob, policy in plan.recompute if policy != "none") or "none"),
        ("step time", _step_time(plan)),
        ("throughput", _throughput(plan)),
        ("MFU", f"{units.percent(plan.prediction.mfu)} (model FLOPs, without recompute, against the peak)"),
        ("bubble", f"{units.percent(plan.prediction.bubble_of_total)} of the total step"),
        ("coverage", coverage(plan)),
        ("semantics", plan.semantics),
    ]
    return facts("Plan", [*rows, *_optional(plan)])


def coverage(plan: Plan) -> str:
    """`99.1 % of FLOPs modelled; unmodelled: aten.foo`."""
    unknown = f"; unmodelled: {', '.join(plan.model.unmodelled)}" if plan.model.unmodelled else ""
    return f"{units.percent(plan.model.coverage)} of FLOPs modelled{unknown}"


def constraints(plan: Plan) -> str:
    """What the user asked for, empty if nothing."""
    asked = plan.constraints
    parts = [f"{axis}={degree}" for axis, degree in asked.mesh]
    if asked.memory_bytes and asked.memory_bytes != plan.cluster.memory_bytes:
        parts.append(f"memory {units.gib(asked.memory_bytes)}")
    if asked.recompute not in ("", "auto"):
        parts.append(f"recompute {asked.recompute}")
    return ", ".join(parts)


def _optional(plan: Plan) -> list[tuple[str, str]]:
    rows = [
        ("asked for", constraints(plan)),
        ("ties", "; ".join(" = ".join(names) for names in plan.ties)),
        ("offload", ", ".join(f"{what} to {where}" for what, where in plan.offload)),
        (
            "note",
            ""
            if not plan.search.ended_by.startswith("--max")
            else f"the search was ended by {plan.search.ended_by}: another machine may find another plan",
        ),
        ("note", "" if plan.cluster.calibrated else "costs are not calibrated: data-sheet rates, not measurements of this machine"),
    ]
    return [row for row in rows if row[1]]


def _model(plan: Plan) -> str:
    model = plan.model
    precision = model.dtype if model.compute_dtype == model.dtype else f"{model.dtype}, computed in {model.compute_dtype}"
    work = units.work(model.flop_per_sample)
    return f"{model.name}: {units.count(model.parameters)} parameters in {precision}, reduced in {model.reduce_dtype}; {work} per sample"


def _cluster(plan: Plan) -> str:
    cluster = plan.cluster
    return f"{cluster.devices} x {cluster.name}, {cluster.devices_per_node} per node, {units.gib(cluster.memory_bytes)} each"


def _batch(plan: Plan) -> str:
    schedule = plan.schedule
    parts = [
        units.amount(schedule.microbatches, "microbatch"),
        units.amount(schedule.microbatch_size, "sample"),
    ]
    if plan.mesh.dp > 1:
        parts.insert(0, f"{plan.mesh.dp} data-parallel ranks")
    return f"{units.amount(schedule.global_batch, 'sample')} per step: {' x '.join(parts)}"


def _schedule(plan: Plan) -> str:
    schedule = plan.schedule
    parts = ["one stage"]
    if len(plan.stages) > 1:
        parts = [f"{schedule.name} over {len(plan.stages)} stages"]
    if schedule.virtual > 1:
        parts.append(f"{schedule.virtual} virtual stages per rank")
    if plan.mesh.dp > 1:
        parts.append(f"ZeRO-{schedule.zero} ({ZERO[schedule.zero]})")
    return ", ".join(parts)


def _step_time(plan: Plan) -> str:
    predicted = plan.prediction
    low, high = units.duration(predicted.step_time_low_s), units.duration(predicted.step_time_high_s)
    return f"{units.duration(predicted.step_time_s)} predicted ({low} to {high})"


def _throughput(plan: Plan) -> str:
    predicted = plan.prediction
    samples = units.rate(predicted.samples_per_s, "samples")
    return f"{samples}, {units.rate(predicted.tokens_per_s, 'tokens')}" if predicted.tokens_per_s else samples
