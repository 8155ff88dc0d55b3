"""What the user reads when no plan exists."""

from __future__ import annotations

import pytest

from costmodels.hardware import preset
from planner.driver import make_plan
from planner.errors import InfeasibleError
from planner.ir.options import Options
from planner.trace.trace import trace
from tests.models.zoo import source

LSTM = r"^no legal plan for 2 GPUs with --mesh tp=2: tp > 1: no rule for lstm in encoder: it cannot run inside a tensor parallel region$"
RESERVED = r"^the smallest plan needs 5\.5 GiB per GPU \(stage 0 of \d, .*: reserve 5\.5, .*\), the limit is 1\.0 GiB; try --memory-gib 6$"
LARGE = r"^the smallest plan needs \d+\.\d GiB per GPU \(stage 0 of \d, .*\), the limit is 79\.6 GiB; try --gpus 4 or --recompute full"


def test_only_the_reason_for_what_was_asked_is_told() -> None:
    with pytest.raises(InfeasibleError, match=LSTM):
        make_plan(trace(source("lstm_seq2seq:tiny")), preset("h100").with_devices(2), Options(mesh=(("tp", 2),)))


def test_the_smallest_plan_and_what_holds_its_memory_are_named() -> None:
    with pytest.raises(InfeasibleError, match=LARGE):
        make_plan(trace(source("gpt:gpt3_175b"), compute_dtype="bfloat16"), preset("h100").with_devices(2), Options(recompute="none"))


def test_more_gpus_do_not_help_against_the_reserve() -> None:
    with pytest.raises(InfeasibleError, match=RESERVED):
        make_plan(trace(source("gpt:tiny")), preset("h100").with_devices(2), Options(memory_bytes=2**30))
