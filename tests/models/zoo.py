"""The model zoo as tests use it: `source("gpt:tiny")` is what `autopar plan benchmarks/models/gpt.py:tiny` plans."""

import importlib
from functools import partial

from planner.trace.source import ModelSource

TINY = (
    "gpt:tiny",
    "llama:tiny",
    "mlp:tiny",
    "vit:tiny",
    "moe:tiny",
    "t5:tiny",
    "resnet:tiny",
    "dit:tiny",
    "lstm_seq2seq:tiny",
    "gcn:tiny",
    "two_tower:tiny",
)

LARGE = {
    "gpt:gpt2_small": 124.4e6,  # Radford et al. 2019, as released
    "gpt:gpt3_2b7": 2.65e9,  # Brown et al. 2020, table 2.1
    "gpt:gpt3_175b": 175e9,
    "llama:llama_8b": 8.03e9,  # Grattafiori et al. 2024, as released
    "llama:llama_70b": 70.6e9,
    "llama:llama_405b": 405.9e9,
    "mlp:wide": 2.15e9,
    "vit:vit_b16": 86.6e6,  # Dosovitskiy et al. 2020, table 1
    "moe:mixtral_8x7b": 46.7e9,  # Jiang et al. 2024
    "t5:t5_base": 222.9e6,  # Raffel et al. 2019, as released
    "t5:t5_3b": 2.85e9,
    "resnet:resnet50": 25.6e6,  # He et al. 2015
    "resnet:wide_resnet": 68.9e6,  # Zagoruyko and Komodakis 2016
    "dit:dit_xl": 675e6,  # Peebles and Xie 2022, table 1
    "lstm_seq2seq:lstm_1024": 167.6e6,
    "gcn:large": 270.9e6,
    "two_tower:large": 2.25e9,
}
"""Full sizes and their parameters: published where a source stands beside them, our own count otherwise."""


def source(name: str) -> ModelSource:
    """The model file and factory of `name`, "file:factory"."""
    file, _, factory = name.partition(":")
    module = importlib.import_module(f"benchmarks.models.{file}")
    build = getattr(module, factory)

    def inputs(batch_size: int) -> dict[str, object]:
        return module.inputs(batch_size, build())

    return ModelSource(name, build, inputs, module.loss, getattr(module, "weight", partial(_samples)))


def _samples(batch: dict[str, object]) -> float:
    return float(len(next(iter(batch.values()))))
