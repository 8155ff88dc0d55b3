"""The model zoo computes what its files promise, in the small, and has the published sizes, in the large."""

import copy
import math

import pytest
import torch
from torch import nn

from benchmarks.models import gpt, llama, lstm_seq2seq, moe, t5
from planner.ir.batch import forward_arguments
from tests.models.zoo import LARGE, TINY, source


def batch_of(name, batch_size, dtype):
    torch.manual_seed(1)
    batch = source(name).inputs(batch_size)
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}


def built(name, dtype=torch.float64):
    torch.manual_seed(0)
    return source(name).model().to(dtype)


def output_of(model, batch):
    args, kwargs = forward_arguments(model.forward, batch)
    return model(*args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", TINY)
def test_one_step(name, dtype):
    """A step of gradient descent lowers a finite loss, and every parameter has a gradient."""
    model, batch = built(name, dtype), batch_of(name, 4, dtype)
    loss = source(name).loss(output_of(model, batch), batch)
    loss.backward()
    assert [fqn for fqn, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    after = source(name).loss(output_of(model, batch), batch)
    assert math.isfinite(loss.item())
    assert after < loss
    assert dtype == loss.dtype


@pytest.mark.parametrize("name", TINY)
def test_batch_first(name):
    """Every tensor of a batch of three has three entries along its first dim."""
    assert {3} == {value.shape[0] for value in source(name).inputs(3).values()}


@pytest.mark.parametrize("name", [name for name in TINY if name != "resnet:tiny"])
def test_samples_are_independent(name):
    """The output of two samples is the output of each alone (ResNet's batch norm is the exception)."""
    model, batch = built(name), batch_of(name, 2, torch.float64)
    alone = [output_of(model, {key: value[i : i + 1] for key, value in batch.items()}) for i in (0, 1)]
    torch.testing.assert_close(torch.cat(alone), output_of(model, batch))


@pytest.mark.parametrize("name", LARGE)
def test_published_size(name):
    """Full sizes build on the meta device, with the published number of parameters within one percent."""
    with torch.device("meta"):
        model = source(name).model()
    assert {"meta"} == {t.device.type for t in (*model.parameters(), *model.buffers())}
    assert pytest.approx(LARGE[name], rel=0.01) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", TINY)
def test_inputs_on_meta(name):
    """A batch can be described without data, for a model without data."""
    with torch.device("meta"):
        batch = source(name).inputs(2)
    assert {"meta"} == {value.device.type for value in batch.values()}
    assert {key: value.shape for key, value in batch_of(name, 2, torch.float32).items()} == {key: value.shape for key, value in batch.items()}


@pytest.mark.parametrize("name", TINY)
def test_start_from_meta(name):
    """A model built on meta becomes a usable one by to_empty, reset_parameters and init_buffers: every owner of a tensor has one of them."""
    with torch.device("meta"):
        model = source(name).model()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(7 if tensor.dtype == torch.int64 else math.nan)
    for module in model.modules():
        for reset in ("reset_parameters", "init_buffers"):
            if hasattr(module, reset):
                getattr(module, reset)()
    real = source(name).model()
    assert [fqn for fqn, tensor in model.state_dict().items() if not tensor.isfinite().all()] == []
    for fqn, buffer in real.named_buffers():
        torch.testing.assert_close(model.get_buffer(fqn), buffer, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt:tiny", "t5:tiny"])
def test_tied_head(name):
    """Embedding and head are one parameter under two names."""
    model = built(name)
    assert model.head.weight is model.embedding.weight
    assert len([fqn for fqn, _ in model.named_parameters() if fqn in ("head.weight", "embedding.weight")]) == 1


@pytest.mark.parametrize("name", ["gpt:tiny", "llama:tiny", "moe:tiny"])
def test_causal(name):
    """A later token does not change earlier outputs (with room for all: in a full expert a later token is the one that is dropped)."""
    model, batch = built(name), batch_of(name, 1, torch.float64)
    before = output_of(model, batch)
    batch["tokens"][0, -1] = (batch["tokens"][0, -1] + 1) % model.config.vocab_size
    after = output_of(model, batch)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_ignored_labels_weigh_nothing():
    """The weight of a batch is the number of labels that are not -100, and the loss is the mean over just those."""
    model, batch = built("gpt:tiny"), batch_of("gpt:tiny", 2, torch.float64)
    output = output_of(model, batch)
    parts = [{key: value[i : i + 1] for key, value in batch.items()} for i in (0, 1)]
    parts[1]["labels"][0, 3:] = -100
    weights = [gpt.weight(part) for part in parts]
    mean = sum(w * gpt.loss(output[i : i + 1], part) for i, (w, part) in enumerate(zip(weights, parts, strict=True))) / sum(weights)
    assert weights == [16.0, 3.0]
    torch.testing.assert_close(mean, gpt.loss(output, {"labels": torch.cat([part["labels"] for part in parts])}))


def test_rope_depends_on_distance_only():
    """The product of a rotated query and a rotated key depends on their distance, not on their places."""
    config = llama.tiny().config
    rope = llama.Rope(config).double()
    cos, sin = rope(config.max_seq)
    q, k = torch.randn(2, config.head_dim, dtype=torch.float64)
    turned = [llama.rotate(x.expand(1, config.max_seq, 1, -1), cos, sin)[0, :, 0] for x in (q, k)]
    products = turned[0] @ turned[1].T
    torch.testing.assert_close(products[0, 3], products[5, 8])
    torch.testing.assert_close(products[0, 0], q @ k)


@pytest.mark.parametrize("factor", [4.0, 0.5])
def test_moe_against_a_loop(factor):
    """The batched experts give the sum over chosen experts of share * expert(token), first come first served up to the capacity."""
    config = moe.Config(layers=1, width=8, heads=2, kv_heads=2, hidden=16, experts=4, capacity_factor=factor, vocab_size=8, max_seq=12)
    torch.manual_seed(0)
    layer = moe.MoE(config).double()
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for sample in range(2):
        taken = [0] * config.experts
        for position in range(12):
            token = x[sample, position]
            top, chosen = layer.router.scores(token).topk(2)
            for share, e in zip(top.softmax(-1), chosen.tolist(), strict=True):
                if taken[e] < config.capacity:
                    hidden = nn.functional.silu(token @ layer.experts.gate[e]) * (token @ layer.experts.up[e])
                    expected[sample, position] += share * (hidden @ layer.experts.down[e])
                taken[e] += 1
    torch.testing.assert_close(layer(x), expected)


def test_t5_biases():
    """Both directions have their own buckets in the encoder; the decoder masks the future; far distances share the last bucket."""
    config = t5.Config(layers=1, width=8, heads=2, head_dim=4, hidden=8, buckets=8, max_distance=8, max_seq=32)
    seen = t5.RelativeBias(config, causal=False).bucket(torch.tensor([-31, -8, -1, 0, 1, 8, 31])).tolist()
    assert seen == [3, 3, 1, 0, 5, 7, 7]
    causal = t5.RelativeBias(config, causal=True)(5)
    assert causal.shape == (1, 2, 5, 5)
    assert torch.equal(torch.ones(5, 5).triu(1).bool().expand(1, 2, 5, 5), causal.isinf())


@pytest.mark.parametrize("name", [name for name in TINY if name != "resnet:tiny"])
def test_mixed_precision(name):
    """Parameters and inputs in bfloat16, buffers in float32, as fully_shard leaves them: the output is bfloat16.

    Batch norm refuses statistics of another dtype than its weights on the CPU.
    """
    model, batch = built(name, torch.float32), batch_of(name, 2, torch.bfloat16)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    assert torch.bfloat16 == output_of(model, batch).dtype


def test_dropout_changes_the_training_output_only():
    """Dropout is off by default, and on when asked for, in training."""
    torch.manual_seed(0)
    model = gpt.tiny(dropout=0.5)
    batch = gpt.inputs(1, model)
    assert not torch.equal(model(batch["tokens"]), model(batch["tokens"]))
    model.eval()
    assert torch.equal(model(batch["tokens"]), model(batch["tokens"]))


def test_deep_copies_agree():
    """Same weights and batch, same bits: nothing in a forward is random by default."""
    model, batch = built("lstm_seq2seq:tiny"), batch_of("lstm_seq2seq:tiny", 2, torch.float64)
    assert lstm_seq2seq.Config(layers=2, width=32, vocab_size=64, max_seq=8) == model.config
    assert torch.equal(output_of(model, batch), output_of(copy.deepcopy(model), batch))
