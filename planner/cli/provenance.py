"""Where a plan comes from: versions, the model's file, seconds per phase. Only this part of a plan file differs between two runs."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from planner.ir.plan import Plan


def with_provenance(plan: Plan, *, target: str, trace_s: float) -> Plan:
    """The plan with entries for autopar, torch, the model's file and the time to record it, beside those it has."""
    entries = {
        **dict(plan.provenance),
        "autopar": _version("autopar"),
        "torch": _version("torch"),
        "target": target,
        "trace_s": f"{trace_s:.3f}",
    }
    return replace(plan, provenance=tuple(sorted(entries.items())))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path, not installed
        return "not installed"
