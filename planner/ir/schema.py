"""Checks a document against the published JSON Schema, `plan.schema.json`, and says in one line where it fails and what was expected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from planner.errors import PlanError
from planner.ir.json_text import Json

_Validator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)),
)
"""JSON Schema counts 1.0 as an integer; a plan is written with 1."""

_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "minLength": "a length of at least",
    "const": "exactly",
}


def schema() -> Mapping[str, Json]:
    """The JSON Schema of a plan file."""
    loaded: Mapping[str, Json] = json.loads(files("planner.ir").joinpath("plan.schema.json").read_text(encoding="utf-8"))
    return loaded


def check(document: Json) -> None:
    """Raises PlanError with the path of the first thing in `document` that the schema does not allow."""
    errors = list(_Validator(schema()).iter_errors(document))
    if errors:
        first = min(errors, key=lambda error: [str(key) for key in error.absolute_path])
        raise PlanError(f"{path(first.absolute_path)}: {_expected(first)}")


def path(keys: Sequence[str | int]) -> str:
    """`prediction.memory_bytes[0].total` for a sequence of keys; `the plan` for none."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if key.isidentifier() else f"[{key!r}]"
    return text.removeprefix(".") or "the plan"


def _expected(error: ValidationError) -> str:
    value: Any = error.instance
    rule: Any = error.validator_value
    allowed: Any = error.schema
    if error.validator == "required":
        return f"key {next(key for key in rule if key not in value)!r} is missing"
    if error.validator == "additionalProperties":
        return f"key {min(set(value) - set(allowed.get('properties', ())))!r} is unknown; this format has no such key"
    if error.validator == "type":
        found = f"the number {value}" if isinstance(value, float) and rule == "integer" else _NAMES[type(value)]
        return f"expected {_article(rule)}, found {found}"
    if error.validator == "enum":
        return f"expected one of {', '.join(map(str, rule))}, found {value!r}"
    if error.validator in ("minItems", "maxItems"):
        return f"expected {rule} entries at {'least' if error.validator == 'minItems' else 'most'}, found {len(value)}"
    if error.validator == "pattern":
        return f"expected {allowed.get('description', f'text like {rule}')}, found {value!r}"
    return f"expected {_BOUNDS[str(error.validator)]} {rule}, found {value!r}"


def _article(rule: str | list[str]) -> str:
    kinds = [rule] if isinstance(rule, str) else rule
    return " or ".join(f"an {kind}" if kind[0] in "aeiou" else f"a {kind}" for kind in kinds)
