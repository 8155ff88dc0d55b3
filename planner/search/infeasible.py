"""When nothing fits: what would, and what holds the memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from planner.errors import InfeasibleError
from planner.ir.options import Options
from planner.ir.plan import Illegal, MemoryKinds
from planner.search.best_first import Counts
from planner.search.candidates import Candidate
from planner.search.evaluate import Evaluation
from planner.search.pool import Pool

_TRIED = 12
_GIB = 2**30
_KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "temporary", "reserve")


def explain(candidates: Sequence[Candidate], illegal: Sequence[Illegal], pool: Pool, options: Options, *, counts: Counts) -> InfeasibleError:
    """The error to raise: no legal candidate at all, none that gives every GPU something to do, or the smallest plan and its largest parts."""
    if not candidates:
        reasons = "; ".join(f"{refusal.what}: {refusal.why}" for refusal in _decisive(illegal, options)[:3])
        asked = ",".join(f"{axis}={degree}" for axis, degree in options.mesh)
        wanted = f" with --mesh {asked}" if asked else ""
        return InfeasibleError(f"no legal plan for {pool.setting.cluster.devices} GPUs{wanted}{': ' + reasons if reasons else ''}")
    if counts.idle:
        batch = candidates[0].global_batch
        return InfeasibleError(
            f"a global batch of {batch} leaves {pool.setting.cluster.devices} GPUs nothing to divide that is worth it; "
            f"use fewer GPUs, a multiple of {pool.setting.cluster.devices} as --global-batch, or pin --mesh"
        )
    by_least = sorted(candidates, key=lambda c: (pool.least_bytes(c), c))[:_TRIED]
    found = [plan for plan in map(pool.smallest, by_least) if plan is not None]
    smallest = min(found, key=lambda plan: (plan.peak_bytes, plan.candidate))
    return InfeasibleError(_sentence(smallest, pool, options))


def _decisive(illegal: Sequence[Illegal], options: Options) -> list[Illegal]:
    """The reasons that rule out what was asked for, or else all that rule out something as a whole."""
    whole = [refusal for refusal in illegal if not refusal.what.endswith("in part")]
    asked = ("zero=", *(f"{axis}{relation}" for axis, degree in options.mesh for relation in (f"={degree}", " >")))
    return [refusal for refusal in whole if refusal.what.startswith(asked)] or whole


def _sentence(smallest: Evaluation, pool: Pool, options: Options) -> str:
    peaks = [kinds.total for kinds in smallest.memory]
    stage = peaks.index(max(peaks))
    candidate = smallest.candidate
    where = f"stage {stage} of {len(peaks)}, {candidate.mesh}, microbatch {candidate.microbatch_size}, ZeRO {candidate.zero}"
    advice = _advice(smallest, stage, pool, options)
    return (
        f"the smallest plan needs {max(peaks) / _GIB:.1f} GiB per GPU ({where}: {_largest(smallest.memory[stage])}), "
        f"the limit is {pool.setting.limit_bytes / _GIB:.1f} GiB; try {' or '.join(advice)}"
    )


def _advice(smallest: Evaluation, stage: int, pool: Pool, options: Options) -> list[str]:
    """What would lower the memory of the fullest rank, or raise the limit where no plan could lower it enough."""
    candidate, kinds = smallest.candidate, smallest.memory[stage]
    if kinds.reserve + kinds.buffers >= pool.setting.limit_bytes:
        return [f"--memory-gib {ceil(kinds.total / _GIB)}"]
    advice = [f"--gpus {2 * pool.setting.cluster.devices}"]
    if options.recompute == "none":
        advice.append("--recompute full")
    if candidate.microbatch_size > 1 or candidate.microbatches == 1:
        advice.append(f"--global-batch {max(1, candidate.global_batch // 2)}")
    return advice


def _largest(kinds: MemoryKinds) -> str:
    parts = sorted(((getattr(kinds, kind), kind) for kind in _KINDS), reverse=True)
    return ", ".join(f"{kind} {nbytes / _GIB:.1f}" for nbytes, kind in parts[:3])
