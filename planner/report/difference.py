"""What two plans do differently: the entries of their files that are not equal.

Left out is how the plans were found (search, alternatives, provenance) and the details of the prediction; `diff` on the files shows these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.ir.plan import Plan
from planner.ir.plan_json import write
from planner.report.table import Section, table

LEFT_OUT = ("alternatives", "provenance", "search")
PREDICTED = ("bubble_of_total", "mfu", "peak_memory_bytes", "step_time_s")


def difference(old: Plan, new: Plan) -> Section:
    """One row per entry that differs."""
    rows = list(differences(_content(old), _content(new)))
    return table("Differences" if rows else "The plans do the same", ("entry", "old", "new"), rows)


def differences(old: Any, new: Any, *, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, old, new) of the entries that differ between two JSON values."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), path=f"{path}.{key}" if path else key)
    elif _entries(old) and _entries(new) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from differences(left, right, path=f"{path}[{index}]")
    else:
        yield path, _shown(old), _shown(new)


def _content(plan: Plan) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(write(plan))
    kept = {key: value for key, value in content.items() if key not in LEFT_OUT}
    return kept | {"prediction": {key: content["prediction"][key] for key in PREDICTED}}


def _entries(value: Any) -> bool:
    return isinstance(value, Sequence) and any(isinstance(entry, Mapping | list) for entry in value) and not isinstance(value, str)


def _shown(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
