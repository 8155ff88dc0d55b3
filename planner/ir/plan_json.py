"""The plan file: `write` and `read` are inverse, `save` and `load` do the same with a file.

The text is canonical (see json_text), so equal plans give equal bytes and two plans are compared with `diff`. Reading is strict: unknown,
missing and repeated keys, wrong types, wrong placements and lists of the wrong length are errors that name the place. Reading never runs
code. Tables keyed by name (parameters, activations, recompute, offload, provenance, blocks, pinned degrees) have no order in the file;
they are read back sorted by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.errors import PlanError
from planner.ir import json_text, schema
from planner.ir.batch import InputInfo
from planner.ir.mesh import Mesh
from planner.ir.placement import Placement, parse_placement
from planner.ir.plan import (
    FORMAT,
    Activation,
    Alternative,
    BlockInfo,
    Breakdown,
    ClusterInfo,
    Constraints,
    Illegal,
    MemoryKinds,
    ModelInfo,
    Plan,
    Prediction,
    ScheduleInfo,
    Search,
    Stage,
)
from planner.ir.strategy import Collective

LONGEST = 1 << 24
"""Characters of a file that may be a plan: a device that never ends is refused, too."""

Document = Mapping[str, Any]
"""An object of the file, already checked against the schema."""


def write(plan: Plan) -> str:
    """The text of the plan file."""
    return json_text.render(_document(plan))


def read(text: str) -> Plan:
    """The plan in `text`.

    Raises PlanError naming the first place that is wrong and what was expected there.
    """
    document = json_text.parse(text)
    found = document.get("format") if isinstance(document, Mapping) else None
    if found != FORMAT:
        raise PlanError(f"format: expected {FORMAT!r}, found {found!r}; this is no plan file, or another version of autopar wrote it")
    schema.check(document)
    assert isinstance(document, Mapping)
    return _consistent(_plan(document))


def canonical(plan: Plan) -> Plan:
    """The plan as its file holds it: tables keyed by name in the order of names. PlanError if `read` would refuse it."""
    return read(write(plan))


def save(plan: Plan, path: str | Path) -> None:
    """Writes the plan file whole or not at all: a reader sees the old file or the new one.

    Raises PlanError if the path cannot be written, or if `load` would refuse the plan.
    """
    text = write(canonical(plan))
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or a device is written, not replaced
        else:
            _replace(target, text)
    except OSError as error:
        raise PlanError(f"cannot write {path}: {error.strerror}") from error


def check_writable(path: str | Path) -> None:
    """Raises PlanError now if `save` could not write `path` later."""
    try:
        _check_writable(Path(os.path.realpath(path)), path)
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null byte
        raise PlanError(f"cannot write {str(path)!r}: {error}") from error


def _check_writable(target: Path, path: str | Path) -> None:
    if target.is_dir():
        raise PlanError(f"cannot write {path}: it is a folder; name a file in it")
    if not target.parent.is_dir():
        raise PlanError(f"cannot write {path}: there is no folder {target.parent}; make it first")
    if not os.access(target if target.exists() and not target.is_file() else target.parent, os.W_OK):
        raise PlanError(f"cannot write {path}: no permission to write in {target.parent}")


def load(path: str | Path) -> Plan:
    """The plan in the file at `path`; PlanError if it cannot be read."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: this is not UTF-8 text (byte {error.start}); a plan file is JSON") from error
    except ValueError as error:  # a null byte in the name
        raise PlanError(f"cannot read {str(path)!r}: {error}") from error
    if len(text) > LONGEST:
        raise PlanError(f"{path}: longer than {LONGEST:,} characters; no plan is")
    try:
        return read(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _replace(target: Path, text: str) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _document(plan: Plan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": {**asdict(plan.model), "blocks": {block.glob: block.copies for block in plan.model.blocks}},
        "cluster": asdict(plan.cluster),
        "mesh": asdict(plan.mesh),
        "stages": [asdict(stage) for stage in plan.stages],
        "parameters": {glob: _texts(placements) for glob, placements in plan.parameters},
        "activations": {border: _activation_text(activation) for border, activation in plan.activations},
        "ties": plan.ties,
        "buffers": plan.buffers,
        "rng": plan.rng,
        "recompute": dict(plan.recompute),
        "offload": dict(plan.offload),
        "schedule": asdict(plan.schedule),
        "semantics": plan.semantics,
        "constraints": {**asdict(plan.constraints), "mesh": dict(plan.constraints.mesh)},
        "prediction": asdict(plan.prediction),
        "search": {**asdict(plan.search), "illegal": _illegal_text(plan)},
        "alternatives": [asdict(alternative) for alternative in plan.alternatives],
        "provenance": dict(plan.provenance),
    }


def _texts(placements: Iterable[Placement]) -> list[str]:
    return [str(placement) for placement in placements]


def _activation_text(activation: Activation) -> dict[str, list[str]]:
    return {"value": _texts((activation.value_from, activation.value)), "grad": _texts((activation.grad_from, activation.grad))}


def _illegal_text(plan: Plan) -> dict[str, Any]:
    return {"count": plan.search.illegal, "reasons": [asdict(illegal) for illegal in plan.illegal]}


def _plan(document: Document) -> Plan:
    search = document["search"]
    return Plan(
        model=_model(document["model"]),
        cluster=ClusterInfo(**document["cluster"]),
        mesh=Mesh(**document["mesh"]),
        stages=tuple(Stage(stage["begin"], tuple(stage["modules"])) for stage in document["stages"]),
        parameters=tuple((glob, _placements(texts)) for glob, texts in sorted(document["parameters"].items())),
        activations=tuple((border, _activation(texts)) for border, texts in sorted(document["activations"].items())),
        ties=tuple(map(tuple, document["ties"])),
        buffers=tuple(document["buffers"]),
        rng=document["rng"],
        recompute=tuple(sorted(document["recompute"].items())),
        offload=tuple(sorted(document["offload"].items())),
        schedule=ScheduleInfo(**document["schedule"]),
        semantics=document["semantics"],
        constraints=Constraints(**{**document["constraints"], "mesh": tuple(sorted(document["constraints"]["mesh"].items()))}),
        prediction=_prediction(document["prediction"]),
        search=Search(**{**search, "illegal": search["illegal"]["count"], "bound_s": float(search["bound_s"]), "gap": float(search["gap"])}),
        illegal=tuple(Illegal(**reason) for reason in search["illegal"]["reasons"]),
        alternatives=tuple(map(_alternative, document["alternatives"])),
        provenance=tuple(sorted(document["provenance"].items())),
    )


def _placements(texts: Iterable[str]) -> tuple[Placement, ...]:
    return tuple(map(parse_placement, texts))


def _activation(texts: Document) -> Activation:
    return Activation(*_placements(texts["value"]), *_placements(texts["grad"]))


def _model(document: Document) -> ModelInfo:
    return ModelInfo(
        **{
            **document,
            "inputs": tuple(InputInfo(tuple(entry["path"]), tuple(entry["shape"]), entry["dtype"]) for entry in document["inputs"]),
            "blocks": tuple(BlockInfo(glob, tuple(copies)) for glob, copies in sorted(document["blocks"].items())),
            "coverage": float(document["coverage"]),
            "unmodelled": tuple(document["unmodelled"]),
        }
    )


def _prediction(document: Document) -> Prediction:
    seconds = {name: float(value) for name, value in document.items() if isinstance(value, int | float)}
    return Prediction(
        **seconds,
        breakdown_s=Breakdown(**{name: float(value) for name, value in document["breakdown_s"].items()}),
        peak_memory_bytes=tuple(document["peak_memory_bytes"]),
        memory_bytes=tuple(MemoryKinds(**kinds) for kinds in document["memory_bytes"]),
        collectives=tuple(tuple(Collective(**each) for each in stage) for stage in document["collectives"]),
    )


def _alternative(document: Document) -> Alternative:
    return Alternative(
        **{
            **document,
            "mesh": Mesh(**document["mesh"]),
            "schedule": ScheduleInfo(**document["schedule"]),
            "step_time_s": float(document["step_time_s"]),
        }
    )


def _consistent(plan: Plan) -> Plan:
    """The plan itself, if its parts fit each other."""
    stages, pieces = len(plan.stages), plan.mesh.pp * plan.schedule.virtual
    if stages != pieces:
        raise PlanError(f"stages: expected {pieces} entries (pp={plan.mesh.pp} x virtual={plan.schedule.virtual}), found {stages}")
    if plan.mesh.world_size != plan.cluster.devices:
        raise PlanError(f"mesh: its degrees multiply to {plan.mesh.world_size} ranks, cluster.devices is {plan.cluster.devices}")
    for name in ("peak_memory_bytes", "memory_bytes", "collectives"):
        found = len(getattr(plan.prediction, name))
        if found != stages:
            raise PlanError(f"prediction.{name}: expected one entry for each of {stages} stages, found {found}")
    samples = plan.schedule.microbatches * plan.schedule.microbatch_size * plan.mesh.dp
    if samples != plan.schedule.global_batch:
        raise PlanError(f"schedule: microbatches x microbatch_size x dp is {samples} samples, global_batch is {plan.schedule.global_batch}")
    return plan
