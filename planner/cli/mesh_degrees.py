"""The text form of mesh degrees on the command line: `pp=2,tp=2`."""

from __future__ import annotations

import click

from planner.ir.mesh import AXES

Degrees = tuple[tuple[str, int], ...]


class MeshDegrees(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Parses `AXIS=N,...` into (axis, degree) pairs, sorted by axis."""

    name = "mesh"

    def convert(self, value: str | Degrees, param: click.Parameter | None, ctx: click.Context | None) -> Degrees:
        """The pairs; a wrong axis, degree or a repeated axis is a usage error."""
        if not isinstance(value, str):
            return value
        found: dict[str, int] = {}
        for part in value.split(","):
            axis, _, degree = part.strip().partition("=")
            if axis not in AXES:
                self.fail(f"{part.strip()!r} names no mesh axis; use pp, dp_replicate, dp_shard, tp, as in pp=2,tp=2", param, ctx)
            if axis in found:
                self.fail(f"axis {axis} is given twice", param, ctx)
            if not degree.isdecimal() or int(degree) < 1:
                self.fail(f"the degree in {part.strip()!r} is not a whole number of at least 1", param, ctx)
            found[axis] = int(degree)
        return tuple(sorted(found.items()))
