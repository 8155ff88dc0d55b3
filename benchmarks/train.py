"""Trains a model by its plan, on one batch again and again: the loss has to fall.

    torchrun --standalone --nproc-per-node 4 benchmarks/train.py tiny.json benchmarks/models/gpt.py:tiny

The model is built on the meta device, so each rank allocates its own part only.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import torch

import autopar
from planner.trace.load import load


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model by its plan, under torchrun.")
    parser.add_argument("plan")
    parser.add_argument("model", help="model.py or model.py:factory, the one the plan was made for")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    asked = parser.parse_args()
    source = load(asked.model)
    with torch.device("meta"):
        model = source.model()
    job = autopar.parallelize(model, asked.plan, loss=source.loss, weight=source.weight)
    optimizer = torch.optim.AdamW(job.parameters(), lr=asked.learning_rate)
    torch.manual_seed(0)
    batch = job.local_batch(source.inputs(job.plan.schedule.global_batch))
    print(job.rank_summary(), flush=True)
    for step in range(asked.steps):
        started = perf_counter()
        loss = job.step(batch)
        norm = job.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if torch.distributed.get_rank() == 0:
            print(
                f"step {step}: loss {loss.item():.4f}, gradient norm {float(norm):.3f}, {(perf_counter() - started) * 1e3:.0f} ms", flush=True
            )
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
