"""JSON text that people read with `diff`, and a parser that accepts nothing dubious.

Keys are sorted. A list of scalars stands on one line, and so does a small object from the second level on: one parameter, one activation,
one collective, one runner-up per line. Floats are printed as the shortest text that reads back as the same number, so equal values give
equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from planner.errors import PlanError

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
"""A JSON value."""


def render(value: Json) -> str:
    """The canonical text of `value`, with a final newline."""
    return _render(value, depth=0) + "\n"


def parse(text: str) -> Json:
    """The value of a JSON text.

    Raises PlanError for text that ends early or is no JSON, for a key given twice, for numbers that are not finite, and for strings that are
    not Unicode.
    """
    try:
        value: Json = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite, parse_float=_finite)
        render(value).encode()  # half a surrogate pair (\ud800) is JSON but no text
    except PlanError:
        raise
    except json.JSONDecodeError as error:
        raise PlanError(f"line {error.lineno}, column {error.colno}: this is not JSON ({error.msg}); was the file cut off?") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"this is not usable JSON ({error})") from error
    return value


def _render(value: Json, *, depth: int) -> str:
    if isinstance(value, Mapping):
        members = [f"{_scalar(key)}: {_render(value[key], depth=depth + 1)}" for key in sorted(value)]
        return _group("{", members, "}", depth=depth, one_line=depth >= 2 and _height(value) <= 2)
    if isinstance(value, Sequence) and not isinstance(value, str):
        members = [_render(member, depth=depth + 1) for member in value]
        return _group("[", members, "]", depth=depth, one_line=_height(value) == 1)
    return _scalar(value)


def _group(opening: str, members: Sequence[str], closing: str, *, depth: int, one_line: bool) -> str:
    if one_line or not members:
        return opening + ", ".join(members) + closing
    indent = "\n" + " " * (depth + 1)
    return opening + indent + ("," + indent).join(members) + "\n" + " " * depth + closing


def _scalar(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _height(value: Json) -> int:
    """Levels of containers: 0 for a scalar, 1 for a list of scalars."""
    if isinstance(value, Mapping):
        return 1 + max(map(_height, value.values()), default=0)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return 1 + max(map(_height, value), default=0)
    return 0


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise PlanError(f"key {twice!r} is given twice in one object; keep one of them")
    return found


def _not_finite(text: str) -> float:
    raise PlanError(f"{text} is not a number that a plan may hold; every number is finite")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise PlanError(f"{text} is too large for a number; every number is finite")
    return number
