"""The plan file: a bijection between plans and canonical texts, and nothing else is accepted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from planner.errors import PlanError
from planner.ir import plan_json
from planner.ir.mesh import Mesh
from planner.ir.plan import Plan
from planner.ir.schema import schema
from tests.example_plans import FULL, PLAIN
from tests.strategies import plans

KEYS = {
    "format", "model", "cluster", "mesh", "stages", "parameters", "activations", "ties", "buffers", "rng",
    "recompute", "offload", "schedule", "semantics", "constraints", "prediction", "search", "alternatives", "provenance",
}  # fmt: skip


@given(plans())
@settings(max_examples=60)
def test_reading_inverts_writing(plan: Plan) -> None:
    """read(write(p)) == p, and writing again gives the same bytes."""
    text = plan_json.write(plan)
    assert plan == plan_json.read(text)
    assert text == plan_json.write(plan_json.read(text))


@given(plans(), st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_order_of_names_does_not_matter(plan: Plan, random: Any) -> None:
    """Tables keyed by name are written sorted, so any order of the same entries gives the same bytes."""
    shuffled = random.sample(plan.parameters, len(plan.parameters))
    assert plan_json.write(plan) == plan_json.write(replace(plan, parameters=tuple(shuffled)))
    assert plan == plan_json.canonical(replace(plan, parameters=tuple(shuffled)))


def test_full_plan_text(golden: Callable[[str, str], None]) -> None:
    """The file of a plan in which every table has entries."""
    golden("plan_full.json", plan_json.write(FULL))


def test_keys_are_those_of_the_design() -> None:
    """Exactly the promised keys at the top."""
    assert KEYS == json.loads(plan_json.write(FULL)).keys()


def test_one_parameter_per_line() -> None:
    """`diff` shows a changed placement as one line."""
    assert '  "layers.*.attention.wq.weight": ["R", "S(0)", "S(0)"],' in plan_json.write(FULL).splitlines()


def test_schema_is_a_schema() -> None:
    """The published file is valid JSON Schema, and the example is valid by it."""
    Draft202012Validator.check_schema(schema())
    Draft202012Validator(schema()).validate(json.loads(plan_json.write(FULL)))


@given(st.data())
@settings(max_examples=60)
def test_truncated_text_is_refused(data: st.DataObject) -> None:
    """No proper beginning of a plan file reads as a plan."""
    text = plan_json.write(PLAIN).rstrip()
    length = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(PlanError, match="this is not JSON"):
        plan_json.read(text[:length])


def objects(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The places of all objects in a JSON value."""
    if isinstance(value, dict):
        return [at, *(place for key, member in value.items() for place in objects(member, (*at, key)))]
    if isinstance(value, list):
        return [place for index, member in enumerate(value) for place in objects(member, (*at, index))]
    return []


RECORDS = [
    place
    for place in objects(json.loads(plan_json.write(FULL)))
    if place not in {("parameters",), ("activations",), ("recompute",), ("offload",), ("provenance",), ("model", "blocks")}
]
"""Objects with fixed keys."""


def changed(place: tuple[str | int, ...], change: Callable[[Any], object]) -> str:
    """The text of the example with one object changed."""
    document = json.loads(plan_json.write(FULL))
    value = document
    for key in place:
        value = value[key]
    change(value)
    return json.dumps(document)


@pytest.mark.parametrize("place", RECORDS, ids=str)
def test_unknown_key_is_refused(place: tuple[str | int, ...]) -> None:
    """A key that the format does not know is an error at its object."""
    with pytest.raises(PlanError, match="key 'colour' is unknown"):
        plan_json.read(changed(place, lambda value: value.update(colour="red")))


@pytest.mark.parametrize("place", [place for place in RECORDS if place != ("constraints", "mesh")], ids=str)
def test_missing_key_is_refused(place: tuple[str | int, ...]) -> None:
    """Every key of every record is required."""
    document = json.loads(plan_json.write(FULL))
    for key in place:
        document = document[key]
    for key in document:
        expected = "format: expected" if key == "format" else f"key {key!r} is missing"
        with pytest.raises(PlanError, match=re.escape(expected)):
            plan_json.read(changed(place, lambda value, key=key: value.pop(key)))  # type: ignore[misc]


@pytest.mark.parametrize("place", RECORDS, ids=str)
def test_wrong_type_is_refused(place: tuple[str | int, ...]) -> None:
    """No entry of a record may be null or a boolean in place of what belongs there, except where a boolean does."""
    document = json.loads(plan_json.write(FULL))
    for key in place:
        document = document[key]
    for key, wrong in ((key, wrong) for key in document for wrong in (None, True)):
        if key != "calibrated" or wrong is None:
            with pytest.raises(PlanError):
                plan_json.read(changed(place, lambda value, key=key, wrong=wrong: value.update({key: wrong})))  # type: ignore[misc]


WRONG = [
    (("mesh",), {"pp": "2"}, "mesh.pp: expected an integer, found a string"),
    (("mesh",), {"pp": 2.0}, "mesh.pp: expected an integer, found the number 2.0"),
    (("mesh",), {"pp": 0}, "mesh.pp: expected at least 1, found 0"),
    (("mesh",), {"tp": 2}, "mesh: its degrees multiply to 8 ranks, cluster.devices is 16"),
    (("parameters",), {"norm.weight": ["R", "S(0)"]}, "parameters['norm.weight']: expected 3 entries at least, found 2"),
    (("parameters",), {"norm.weight": ["R", "R", "S(-1)"]}, "parameters['norm.weight'][2]: expected a placement R or S(dim), found 'S(-1)'"),
    (("parameters",), {"norm.weight": ["R", "R", "P(sum)"]}, "parameters['norm.weight'][2]: expected a placement R or S(dim), found 'P(sum)'"),
    (("activations",), {":input": {"value": ["R", "Q"], "grad": ["R", "R"]}}, "activations[':input'].value[1]: expected a placement R, S(dim)"),
    (("schedule",), {"zero": 4}, "schedule.zero: expected at most 3, found 4"),
    (("schedule",), {"global_batch": 63}, "schedule: microbatches x microbatch_size x dp is 64 samples, global_batch is 63"),
    (("schedule",), {"virtual": 2}, "stages: expected 4 entries (pp=2 x virtual=2), found 2"),
    (("recompute",), {"layers.*": "half"}, "recompute['layers.*']: expected one of none, full, found 'half'"),
    (("model",), {"fingerprint": "md5:1"}, "model.fingerprint: expected sha256: and 64 hex digits, found 'md5:1'"),
    (("model",), {"coverage": 1.5}, "model.coverage: expected at most 1, found 1.5"),
    (("prediction",), {"peak_memory_bytes": [1]}, "prediction.peak_memory_bytes: expected one entry for each of 2 stages, found 1"),
    (("prediction",), {"step_time_s": -1.0}, "prediction.step_time_s: expected at least 0, found -1.0"),
    ((), {"stages": []}, "stages: expected 1 entries at least, found 0"),
    ((), {"semantics": ""}, "semantics: expected a length of at least 1, found ''"),
    ((), {"ties": "none"}, "ties: expected an array, found a string"),
    ((), {"format": "autopar-plan/2"}, "format: expected 'autopar-plan/1', found 'autopar-plan/2'"),
]


@pytest.mark.parametrize(("place", "update", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_value_is_named(place: tuple[str, ...], update: dict[str, Any], message: str) -> None:
    """The error names the place, what was expected and what was found."""
    with pytest.raises(PlanError, match=re.escape(message)):
        plan_json.read(changed(place, lambda value: value.update(update)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: this is not JSON"),
        ("[]", "format: expected 'autopar-plan/1', found None"),
        ('{"format": "autopar-plan/1", "format": "autopar-plan/1"}', "key 'format' is given twice"),
        ('{"format": NaN}', "NaN is not a number that a plan may hold"),
        ('{"format": 1e999}', "1e999 is too large"),
        ("[" * 100_000, "this is not usable JSON"),
        ("9" * 10_000, "this is not usable JSON"),
        ('{"format": "\\ud800"}', "surrogates not allowed"),
    ],
    ids=["empty", "array", "repeated", "nan", "huge float", "deep", "huge integer", "half a surrogate pair"],
)
def test_dubious_json_is_refused(text: str, message: str) -> None:
    """JSON that Python would take but a plan may not hold."""
    with pytest.raises(PlanError, match=re.escape(message)):
        plan_json.read(text)


def test_saved_plan_loads(tmp_path: Path) -> None:
    """load(save(p)) == p, over an older file, and nothing else is left in the folder."""
    path = tmp_path / "plan.json"
    plan_json.save(PLAIN, path)
    plan_json.save(FULL, path)
    assert FULL == plan_json.load(path)
    assert [path] == list(tmp_path.iterdir())


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing fails half-way, the old file stays whole and no part of the new one is left."""
    path = tmp_path / "plan.json"
    plan_json.save(PLAIN, path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(PlanError, match="No space left on device"):
        plan_json.save(FULL, path)
    assert PLAIN == plan_json.load(path)
    assert [path] == list(tmp_path.iterdir())


def test_save_follows_links_and_keeps_devices(tmp_path: Path) -> None:
    """A link stays a link to the new plan; a device file is written to, not replaced."""
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "plan.json")
    plan_json.save(FULL, link)
    plan_json.save(FULL, "/dev/null")
    assert FULL == plan_json.load(tmp_path / "plan.json")
    assert link.is_symlink()
    assert Path("/dev/null").is_char_device()


def test_unwritable_paths_are_known_before(tmp_path: Path) -> None:
    """A folder, and a file in a folder that is not there, are refused before any work is done; so does `save`."""
    for path in (tmp_path, tmp_path / "no" / "plan.json"):
        with pytest.raises(PlanError, match=re.escape(f"cannot write {path}")):
            plan_json.check_writable(path)
        with pytest.raises(PlanError, match=re.escape(f"cannot write {path}")):
            plan_json.save(FULL, path)
    plan_json.check_writable(tmp_path / "plan.json")
    assert [] == list(tmp_path.iterdir())


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    """No file, a folder, bytes that are no text, and a wrong plan: each message begins with what and where."""
    binary, wrong = tmp_path / "binary", tmp_path / "wrong.json"
    binary.write_bytes(b"\xff\xfe")
    wrong.write_text(plan_json.write(replace(FULL, mesh=Mesh(pp=2))), encoding="utf-8")
    for path, message in (
        (tmp_path / "none.json", "cannot read {}: No such file or directory"),
        (tmp_path, "cannot read {}: Is a directory"),
        (binary, "{}: this is not UTF-8 text (byte 0)"),
        (wrong, "{}: mesh: its degrees multiply to 2 ranks"),
    ):
        with pytest.raises(PlanError, match=re.escape(message.format(path))):
            plan_json.load(path)


def test_what_would_be_refused_is_not_saved(tmp_path: Path) -> None:
    """A plan that `load` would refuse is refused by `save`, before anything is written."""
    with pytest.raises(PlanError, match=r"prediction\.bubble_of_total: expected at least 0, found -0\.1"):
        plan_json.save(replace(FULL, prediction=replace(FULL.prediction, bubble_of_total=-0.1)), tmp_path / "plan.json")
    assert [] == list(tmp_path.iterdir())


@given(st.data())
@settings(max_examples=150)
def test_damaged_text_never_breaks_the_reader(data: st.DataObject) -> None:
    """Whatever is cut, doubled or overwritten: a PlanError, or a plan that is written as it was read."""
    text = plan_json.write(FULL)
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    patch = data.draw(st.one_of(st.text(max_size=5), st.sampled_from(("null", "1e400", "-1", "{}", "[]", '"', ",", "9" * 5000, "\\ud800"))))
    damaged = text[:start] + patch + text[start + length :]
    try:
        plan = plan_json.read(damaged)
    except PlanError:
        return
    assert plan == plan_json.read(plan_json.write(plan))
