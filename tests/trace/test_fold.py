"""Repeated blocks are recorded once, and nothing but the length of the graph changes by it."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from planner.trace.blocks import runs
from planner.trace.trace import record_at, trace_with
from tests.trace.small import WIDTH, Block, Stack, op_counts, parameter_count, source, total_flop


def folded_and_full(build, **kwargs):
    subject = source(build, **kwargs)
    return tuple(trace_with(subject, runs_of=finder).low for finder in (runs, lambda model: ()))


def assert_equal_work(folded, full):
    assert total_flop(full) == total_flop(folded)
    assert op_counts(full) == op_counts(folded)
    assert parameter_count(full) == parameter_count(folded)


def region_copies(graph):
    return {region.glob: region.copies for region in graph.regions}


@settings(max_examples=5, deadline=None)
@given(layers=st.integers(2, 6), hidden=st.sampled_from((8, 16)), odd=st.integers(-1, 5))
def test_folding_changes_no_total(layers, hidden, odd):
    """FLOPs, operator counts and parameters, multiplicities included, are those of the recording in full, wherever an odd block stands."""

    def build():
        return Stack([Block(n, hidden=24 if n == odd else hidden) for n in range(layers)])

    folded, full = folded_and_full(build)
    assert_equal_work(folded, full)
    in_a_row = max(odd, layers - 1 - odd) if 0 <= odd < layers else layers
    assert in_a_row == max((region.count for region in folded.regions), default=1)


def test_a_region_names_its_copies_and_what_is_handed_on():
    folded, _ = folded_and_full(lambda: Stack([Block(n) for n in range(5)]))
    (region,) = folded.regions
    assert "layers.*" == region.glob
    assert tuple(f"layers.{n}" for n in range(5)) == region.copies
    (read, written) = region.carried[0]
    assert ("entry:output", "layers.0:output") == (folded.producer[read].border, folded.producer[written].border)
    assert [op.name for op in folded.ops if op.module.startswith("layers.")] == list(region.ops)


def test_depth_does_not_change_the_length_of_the_graph():
    short, _ = folded_and_full(lambda: Stack([Block(n) for n in range(3)]))
    long, _ = folded_and_full(lambda: Stack([Block(n) for n in range(12)]))
    assert len(short.ops) == len(long.ops)
    assert len(short.backward) == len(long.backward)


class ReadsNumber(Block):
    def forward(self, x):
        return super().forward(x) * (self.number + 1)


def test_blocks_that_read_their_number_are_recorded_in_full():
    folded, full = folded_and_full(lambda: Stack([ReadsNumber(n) for n in range(3)]))
    assert {} == region_copies(folded)
    assert op_counts(full) == op_counts(folded)


def test_attributes_that_differ_otherwise_keep_blocks_apart():
    def build():
        blocks = [Block(n) for n in range(4)]
        blocks[3].norm.eps = 1e-3
        return Stack(blocks)

    folded, full = folded_and_full(build)
    assert {"layers.*[0-2]": ("layers.0", "layers.1", "layers.2")} == region_copies(folded)
    assert_equal_work(folded, full)


def scaled_by(factor):
    def build():
        blocks = [Block(n) for n in range(4)]
        for number, block in enumerate(blocks):
            block.scale = partial(torch.mul, other=factor(number))
        return Stack(blocks)

    return build


def test_partial_functions_are_compared_by_what_they_call():
    """functools.partial itself is equal to nothing but itself."""
    folded, full = folded_and_full(scaled_by(lambda number: 2.0))
    assert {"layers.*": tuple(f"layers.{n}" for n in range(4))} == region_copies(folded)
    assert_equal_work(folded, full)
    folded, _ = folded_and_full(scaled_by(lambda number: 2.0 if number < 3 else 3.0))
    assert {"layers.*[0-2]": tuple(f"layers.{n}" for n in range(3))} == region_copies(folded)


def test_shared_parameters_keep_blocks_apart():
    def build():
        blocks = [Block(n) for n in range(3)]
        for block in blocks[1:]:
            block.up.weight = blocks[0].up.weight
        return Stack(blocks)

    folded, _ = folded_and_full(build)
    assert {} == region_copies(folded)


def test_user_hooks_keep_blocks_apart():
    def build():
        blocks = [Block(n) for n in range(3)]
        for block in blocks:
            block.register_forward_hook(lambda module, args, output: output * 2)
        return Stack(blocks)

    folded, _ = folded_and_full(build)
    assert {} == region_copies(folded)


class AllStates(Stack):
    def forward(self, x):
        states = [self.entry(x)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return self.head(torch.stack(states).sum(0))


class Parallel(Stack):
    def forward(self, x):
        x = self.entry(x)
        return self.head(sum(layer(x) for layer in self.layers))


class Interleaved(Stack):
    def forward(self, x):
        x = self.entry(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@pytest.mark.parametrize("stack", [AllStates, Parallel, Interleaved])
def test_calls_that_are_no_chain_are_recorded_in_full(stack):
    """Every state is read later; all read one tensor; something stands between the calls."""
    folded, full = folded_and_full(lambda: stack([Block(n) for n in range(4)]))
    assert {} == region_copies(folded)
    assert_equal_work(folded, full)


class Noted(Block):
    def forward(self, x):
        self.note = self.norm(x)
        return super().forward(x)


class ReadsNotes(Stack):
    def forward(self, x):
        y = super().forward(x)
        return y + sum(layer.note.mean() for layer in self.layers)


def test_tensors_left_on_a_block_and_read_later_prevent_folding():
    folded, full = folded_and_full(lambda: ReadsNotes([Noted(n) for n in range(3)]))
    assert {} == region_copies(folded)
    assert op_counts(full) == op_counts(folded)


class Crossed(Block):
    """Reads a memory besides the stream, twice."""

    def forward(self, x, memory, *, scale=None):
        y = super().forward(x)
        return y + memory.mean(1, keepdim=True) + memory * scale


class Decoder(nn.Module):
    """An encoder whose output all decoder blocks read, and the exit as well."""

    def __init__(self, layers=4):
        super().__init__()
        self.encoder = Stack([Block(n) for n in range(3)])
        self.encoder.head = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Crossed(n) for n in range(layers))

    def forward(self, x):
        memory = self.encoder(x)
        y = x
        for layer in self.layers:
            y = layer(y, memory, scale=0.5)
        return y * memory


def test_a_tensor_all_copies_read_is_invariant_and_its_gradients_add_up():
    folded, full = folded_and_full(Decoder)
    assert [("encoder.layers.*", 3), ("layers.*[1-3]", 3)] == [(region.glob, region.count) for region in folded.regions]
    assert_equal_work(folded, full)


class Siamese(Stack):
    def forward(self, x):
        return super().forward(x) * super().forward(x + 1)


def test_blocks_called_in_two_passes_fold_in_both():
    folded, full = folded_and_full(lambda: Siamese([Block(n) for n in range(4)]))
    assert ["layers.*", "layers.*"] == [region.glob for region in folded.regions]
    assert_equal_work(folded, full)


class Towers(nn.Module):
    """Two equal towers side by side: no chain, but each holds one."""

    def __init__(self):
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.towers = nn.ModuleList(Stack([Block(n) for n in range(3)]) for _ in range(2))

    def forward(self, x):
        x = self.entry(x)
        return self.towers[0](x) * self.towers[1](x)


def test_chains_inside_parallel_copies_are_folded():
    folded, full = folded_and_full(Towers)
    assert ["towers.0.layers.*", "towers.1.layers.*"] == [region.glob for region in folded.regions]
    assert_equal_work(folded, full)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList(Block(n) for n in range(3))

    def forward(self, x):
        for block in self.inner:
            x = block(x)
        return x


def test_the_outermost_repetition_wins():
    folded, full = folded_and_full(lambda: Stack([Outer() for _ in range(3)]))
    assert ["layers.*"] == [region.glob for region in folded.regions]
    assert_equal_work(folded, full)


def test_two_runs_of_one_list_have_two_names():
    folded, full = folded_and_full(lambda: Stack([Block(n, hidden=16 if n < 3 else 8) for n in range(5)]))
    assert ["layers.*[0-2]", "layers.*[3-4]"] == [region.glob for region in folded.regions]
    assert_equal_work(folded, full)


class Passes(Block):
    """Returns the stream, a mask unchanged, and a constant."""

    def forward(self, x, mask):
        return super().forward(x) * mask, mask, 3


class Masked(Stack):
    def forward(self, x):
        x, mask = self.entry(x), torch.ones(x.shape[0], 1, 1)
        for layer in self.layers:
            x, mask, three = layer(x, mask)
        return self.head(x) * three


def test_what_a_block_hands_through_unchanged_stays_the_same_tensor():
    folded, full = folded_and_full(lambda: Masked([Passes(n) for n in range(4)]))
    assert {"layers.*": ("layers.0", "layers.1", "layers.2", "layers.3")} == region_copies(folded)
    assert_equal_work(folded, full)


def test_rows_and_copies_cover_the_parameters_that_are_not_in_the_graph():
    family = trace_with(source(lambda: Stack([Block(n) for n in range(6)])), runs_of=runs)
    assert sum(torch.Size(row.shape).numel() for row in family.rows) == parameter_count(family.low)
    assert {"layers.0"} == {p.fqn[:8] for p in family.low.parameters if p.fqn.startswith("layers.")}


def test_the_model_is_left_as_it_was():
    """Neither classes nor forwards nor hooks change for good."""
    model = Stack([Block(n) for n in range(3)])
    record_at(source(lambda: model), batch=2)
    assert [Block] * 3 == [type(layer) for layer in model.layers]
    assert [] == [name for name, module in model.named_modules() if "forward" in vars(module) or module._forward_hooks]


def test_dropout_that_grows_with_depth_is_recorded_in_full():
    def build():
        blocks = [nn.Sequential(Block(n), nn.Dropout(0.1 * n)) for n in range(3)]
        return Stack(blocks)

    folded, full = folded_and_full(build)
    assert {} == region_copies(folded)
    assert op_counts(full) == op_counts(folded)
