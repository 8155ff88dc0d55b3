"""The predicted peak of memory beside the measured one."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.plan import MemoryKinds, Plan
from planner.ir.verification import Check
from planner.verify.ledger import KINDS, Peak
from planner.verify.rehearsal import Rehearsal

MOST = 1.5
"""A measured peak above this many predicted ones fails,"""
SLACK = 1000
"""unless the difference is less than this part of the device's memory: one in a thousand."""
PROVES = (
    f"a rank needs at most {MOST} times the predicted memory, or 1/{SLACK} of the device more, and with the reserve no more than the device has"
)


def memory_check(rehearsals: Sequence[Rehearsal], plan: Plan) -> Check:
    """One line per rank with all kinds; what fails comes with the numbers."""
    limit = plan.cluster.memory_bytes
    lines, ok = [], True
    for each in rehearsals:
        kinds = plan.prediction.memory_bytes[each.pp_rank]
        expected, found = kinds.total - kinds.reserve, each.peak.nbytes
        fits = found + kinds.reserve <= limit and found <= max(MOST * expected, expected + limit / SLACK)
        ok = ok and fits
        totals = f"measured {found:,} bytes, predicted {expected:,} ({found / max(expected, 1):.2f})"
        lines.append(f"rank {each.alike.rank}: {totals}; {by_kind(each.peak, kinds)}")
    return Check("memory", PROVES, ok, "\n".join(lines))


def by_kind(peak: Peak, kinds: MemoryKinds) -> str:
    """`parameters 12/12, ...`: measured/predicted."""
    predicted = {kind: getattr(kinds, kind) for kind in KINDS} | {"activations": kinds.activations + kinds.temporary}
    return ", ".join(f"{kind} {peak.of(kind):,}/{predicted[kind]:,}" for kind in KINDS)
