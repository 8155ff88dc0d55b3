"""What `autopar verify` found: one record per thing that was to be proven.

`document` is the JSON form, `{"format", "level", "plan", "ok", "checks": [{"name", "proves", "ok", "detail"}]}`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from planner.ir.json_text import Json
from planner.ir.plan import Plan

FORMAT = "autopar-verification/1"

LEVELS = ("shapes",)
"""How deep to look, cheapest first."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing: `name` says which, `proves` what is true of the plan if it is `ok`, `detail` what was found, with the numbers, in one or
    several lines. What could not be proven is not `ok`."""

    name: str
    proves: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The checks of one level; `plan` is `title` of the plan."""

    level: str
    plan: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether everything was proven; nothing at all is no proof."""
        return bool(self.checks) and all(check.ok for check in self.checks)


def title(plan: Plan) -> str:
    """Model and mesh in one line: `gpt.py:tiny on 8 ranks: dp_shard=4 tp=2`."""
    return f"{plan.model.name} on {plan.mesh.world_size} ranks: {plan.mesh}"


def document(verification: Verification) -> Json:
    """The JSON form."""
    checks: list[Json] = [asdict(check) for check in verification.checks]
    return {
        "format": FORMAT,
        "level": verification.level,
        "plan": verification.plan,
        "ok": verification.ok,
        "checks": checks,
    }
