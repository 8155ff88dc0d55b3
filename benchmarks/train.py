"""Trains a model by its plan: a small but whole training job, with text from this machine, a learning-rate schedule and checkpoints.

    torchrun --standalone --nproc-per-node 4 benchmarks/train.py tiny.json benchmarks/models/gpt.py:tiny
    torchrun ... benchmarks/train.py tiny.json benchmarks/models/gpt.py:tiny --steps 200 --checkpoint run1 --save-every 50

The model is built on the meta device, so each rank allocates its own part only. Models of tokens read the source code of Python's standard
library, byte by byte, and predict the next one; all others train on one random batch of their `inputs`. Started again with the same
`--checkpoint`, also by another plan or on another number of ranks, a run goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

import autopar
from planner.errors import AutoparError
from planner.runtime import checkpoint
from planner.runtime.job import Job
from planner.trace.load import load
from planner.trace.source import ModelSource

CORPUS_BYTES = 2**21
Batches = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run is asked to do; `save_every` counts steps, 0 saves only at the end."""

    steps: int
    learning_rate: float
    max_norm: float
    directory: Path | None
    save_every: int

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up over a tenth of the run, then a cosine down to a tenth of the peak."""
        warmup = max(1, self.steps // 10)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - warmup)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))


def corpus() -> Tensor:
    """Bytes of the standard library's source files, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(argparse.__file__).parent.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    return torch.frombuffer(text, dtype=torch.uint8).long()


def token_batches(example: Mapping[str, Tensor], size: int) -> Batches:
    """Batches of text in the form of `example`: `labels` is the token after each of the last other input, which continues the one before it.

    Tokens are bytes modulo the number of ids seen in `example`, since what a vocabulary holds is the model's affair.
    """
    names = [name for name in example if name != "labels"]
    length = example["labels"].shape[1]
    vocabulary = 1 + max(int(tensor.max()) for tensor in example.values())
    text = corpus() % vocabulary

    def batch(step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - length * len(names) - 1, (size,), generator=generator)
        pieces = {name: starts[:, None] + torch.arange(length) + index * length for index, name in enumerate(names)}
        return {name: text[where] for name, where in pieces.items()} | {"labels": text[pieces[names[-1]] + 1]}

    return batch


def is_text(batch: Any) -> bool:
    """Whether a batch holds token ids and, of the same shape [batch, sequence], labels."""
    if not isinstance(batch, Mapping) or not isinstance(batch.get("labels"), Tensor):
        return False
    shape = batch["labels"].shape
    return (
        len(shape) == 2
        and len(batch) > 1
        and all(isinstance(t, Tensor) and t.dtype == torch.int64 and t.shape == shape for t in batch.values())
    )


def batches_of(source: ModelSource, size: int) -> Batches:
    """The global batch of each step, the same on every rank."""
    torch.manual_seed(0)
    example = source.inputs(size)
    if is_text(example):
        return token_batches(example, size)
    return lambda step: example


def train(job: Job, batches: Batches, recipe: Recipe) -> None:
    """The steps that are left, with one line each from rank 0."""
    optimizer = torch.optim.AdamW(job.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95))
    first = resume(job, optimizer, recipe)
    for step in range(first, recipe.steps):
        started = perf_counter()
        rate = recipe.learning_rate_at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = job.step(job.local_batch(batches(step)))
        norm = job.clip_grad_norm_(recipe.max_norm)
        optimizer.step()
        optimizer.zero_grad()
        say(f"step {step}: loss {float(loss):.4f}, gradient norm {float(norm):.3f}, lr {rate:.2e}, {(perf_counter() - started) * 1e3:.0f} ms")
        done = step + 1
        if recipe.directory is not None and (done == recipe.steps or (recipe.save_every and done % recipe.save_every == 0)):
            say(f"saved {checkpoint.save(job, optimizer, recipe.directory, step=done)}")


def resume(job: Job, optimizer: torch.optim.Optimizer, recipe: Recipe) -> int:
    """The first step to do; the state after the ones before comes from the latest checkpoint, if there is one."""
    if recipe.directory is None or checkpoint.latest(recipe.directory) is None:
        return 0
    about = checkpoint.load(job, optimizer, recipe.directory)
    say(f"resumed after {about.step} steps from {checkpoint.latest(recipe.directory)}")
    if about.step >= recipe.steps:
        say(f"nothing to do: --steps is {recipe.steps}")
    return about.step


def say(line: str) -> None:
    """One line on stdout, from rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def run(arguments: argparse.Namespace) -> None:
    source = load(arguments.model)
    with torch.device("meta"):
        model = source.model()
    job = autopar.parallelize(model, arguments.plan, loss=source.loss, weight=source.weight)
    print(job.rank_summary(), flush=True)
    recipe = Recipe(arguments.steps, arguments.learning_rate, arguments.max_norm, arguments.checkpoint, arguments.save_every)
    train(job, batches_of(source, job.plan.schedule.global_batch), recipe)
    dist.barrier()
    dist.destroy_process_group()


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train a model by its plan, under torchrun.")
    parser.add_argument("plan", help="the plan file that autopar wrote")
    parser.add_argument("model", help="model.py or model.py:factory, the one the plan was made for")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", "--lr", type=float, default=3e-3, help="the peak of the schedule")
    parser.add_argument("--max-norm", type=float, default=1.0, help="gradients are clipped to this 2-norm")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="go on from the latest checkpoint in DIR, and save there")
    parser.add_argument("--save-every", type=int, default=0, metavar="N", help="steps between checkpoints; without it one at the end")
    return parser


def main() -> int:
    """Exit code 0, or 1 after a known error, which is one line."""
    try:
        run(options().parse_args())
    except AutoparError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
