"""A `transformers` config.json as a model to plan: the module built from the configuration alone, no weights, no hub.

The task decides what a batch holds. Sequences have min(positions the model has, 2048) tokens: long contexts are trained in a short last
phase, and 2048 is what most published step times use. The loss is our own cross entropy over `logits`, with labels already shifted, because
a loss computed inside `forward` cannot be weighted over microbatches. Caches are off, attention is `sdpa` where the model has it. Experts are
one grouped product, transformers' default; torch's fake kernel for it takes bfloat16 only, so in float32 the tracer keeps them whole.
"""

from __future__ import annotations

import difflib
import importlib
import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import ModelError
from planner.trace.source import ModelSource

LONGEST_SEQUENCE = 2048
RELATIVE_SEQUENCE = 512
"""Where a model has no limit on positions: the length T5 was trained with."""
IMAGE_SIZE = 224
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


def _causal_forward(kind: Any) -> Callable[..., Any]:
    def forward(self: Any, input_ids: Tensor) -> Any:
        return kind.forward(self, input_ids=input_ids)

    return forward


def _seq2seq_forward(kind: Any) -> Callable[..., Any]:
    def forward(self: Any, input_ids: Tensor, decoder_input_ids: Tensor) -> Any:
        return kind.forward(self, input_ids=input_ids, decoder_input_ids=decoder_input_ids)

    return forward


def _image_forward(kind: Any) -> Callable[..., Any]:
    def forward(self: Any, pixel_values: Tensor) -> Any:
        return kind.forward(self, pixel_values=pixel_values)

    return forward


@dataclass(frozen=True, slots=True)
class _Task:
    """`auto` is transformers' factory and `names` its table of architectures; `forward(class)` is its forward, narrowed to the
    inputs that `batch(config, batch_size)` makes."""

    title: str
    auto: str
    names: str
    main_input: str
    forward: Callable[[Any], Callable[..., Any]]
    batch: Callable[[Any, int], dict[str, Tensor]]


def _token_batch(config: Any, batch_size: int, names: tuple[str, ...]) -> dict[str, Tensor]:
    shape = (batch_size, _sequence(config))
    return {name: torch.randint(config.get_text_config().vocab_size, shape) for name in names}


def _causal_batch(config: Any, batch_size: int) -> dict[str, Tensor]:
    return _token_batch(config, batch_size, ("input_ids", "labels"))


def _seq2seq_batch(config: Any, batch_size: int) -> dict[str, Tensor]:
    return _token_batch(config, batch_size, ("input_ids", "decoder_input_ids", "labels"))


def _image_batch(config: Any, batch_size: int) -> dict[str, Tensor]:
    size = getattr(config, "image_size", IMAGE_SIZE)
    height, width = (size, size) if isinstance(size, int) else size
    pixels = torch.randn(batch_size, getattr(config, "num_channels", 3), height, width, dtype=config.dtype)
    return {"pixel_values": pixels, "labels": torch.randint(config.num_labels, (batch_size,))}


_TASKS = (
    _Task("seq2seq", "AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "input_ids", _seq2seq_forward, _seq2seq_batch),
    _Task("causal LM", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "input_ids", _causal_forward, _causal_batch),
    _Task(
        "image classification",
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        "pixel_values",
        _image_forward,
        _image_batch,
    ),
)
_ACCEPTED = "causal LM, seq2seq and image classification architectures of transformers are accepted"


def hf_source(path: Path | str) -> ModelSource:
    """The model that the configuration file at `path` describes; its `model()` builds on torch's default device.

    Raises ModelError if transformers is not installed, if the file is not a configuration, or if its model or task is not supported.
    """
    path = Path(path)
    data = _read(path)
    transformers = _transformers()
    task = _task(data, path)
    config = _configure(transformers, data, path)

    def build() -> nn.Module:
        return _build(getattr(transformers, task.auto), config, task, path)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return task.batch(config, batch_size)

    return ModelSource(f"{path.name}:{_architecture(data) or data['model_type']}", build, inputs, _loss, _weight)


def _loss(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return F.cross_entropy(output["logits"].flatten(0, -2), batch["labels"].flatten(), ignore_index=-100)


def _weight(batch: Mapping[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())


def _transformers() -> Any:
    """Imported on use: it is an optional extra, and takes seconds."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ModelError(f"planning a config.json needs transformers ({error}): pip install autopar[hf]") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise ModelError(f"{path}: no model_type, so this is not a transformers configuration; {_ACCEPTED}")
    return data


def _architecture(data: Mapping[str, Any]) -> str:
    """The first class in `architectures`, or empty."""
    names = data.get("architectures") or [""]
    return str(names[0])


def _task(data: Mapping[str, Any], path: Path) -> _Task:
    """By the architecture where the file names one with a head, else the first task that this type of model has."""
    tables = importlib.import_module("transformers.models.auto.modeling_auto")
    found = {task: getattr(tables, task.names).get(data["model_type"], ()) for task in _TASKS}
    architecture = _architecture(data)
    for task, names in found.items():
        if architecture and architecture in ((names,) if isinstance(names, str) else names):
            return task
    headless = not architecture or architecture.endswith("Model")
    possible = [task for task, names in found.items() if names]
    if possible and headless:
        return possible[0]
    if possible:
        titles = " and ".join(task.title for task in possible)
        raise ModelError(f"{path}: {architecture} is not supported; of {data['model_type']}, autopar plans {titles}: change architectures")
    raise ModelError(f"{path}: model_type {data['model_type']!r} {_why_unknown(data['model_type'], tables)}; {_ACCEPTED}")


def _why_unknown(model_type: str, tables: Any) -> str:
    config_names = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    if model_type in config_names:
        return "has none of these tasks"
    known = {name for task in _TASKS for name in getattr(tables, task.names)}
    close = difflib.get_close_matches(model_type, sorted(known), n=3)
    return "is unknown to the installed transformers" + (f", did you mean {' or '.join(close)}?" if close else "")


def _configure(transformers: Any, data: dict[str, Any], path: Path) -> Any:
    # auto_map would make transformers look for the author's code on the hub
    local = {key: value for key, value in data.items() if key != "auto_map"}
    try:
        config = transformers.CONFIG_MAPPING[data["model_type"]].from_dict(local)
    except Exception as error:  # a configuration class raises whatever its checks and its dependencies raise
        raise ModelError(f"{path}: transformers refuses the configuration: {_one_line(error)}") from error
    config.use_cache = False
    config.dtype = config.dtype or torch.float32
    config.architectures = config.architectures or []
    return config


def _build(auto: Any, config: Any, task: _Task, path: Path) -> nn.Module:
    try:
        model: nn.Module = auto.from_config(config)
    except Exception as error:  # as above: any model's constructor runs here
        raise ModelError(f"{path}: transformers cannot build the model: {_one_line(error)}") from error
    kind = type(model)
    main_input = getattr(model, "main_input_name", task.main_input)
    if main_input != task.main_input:
        raise ModelError(f"{path}: {kind.__name__} reads {main_input}, not {task.main_input}; {_ACCEPTED}")
    model.__class__ = type(kind.__name__, (kind,), {"forward": task.forward(kind), "__module__": kind.__module__})
    return model.train()


def _sequence(config: Any) -> int:
    text = config.get_text_config()
    limits = [limit for key in _LENGTH_KEYS if isinstance(limit := getattr(text, key, None), int) and limit > 0]
    return min(limits[0], LONGEST_SEQUENCE) if limits else RELATIVE_SEQUENCE


def _one_line(error: Exception) -> str:
    """The error's kind and text; transformers puts the cause on a second line at times."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
