"""A transformers config.json becomes a model to plan, without hub and weights."""

import json
import socket
import sys

import pytest
import torch

from planner.errors import ModelError
from planner.ir.batch import forward_arguments
from planner.trace.hf import hf_source
from planner.trace.trace import trace

DECODER = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
DECODER |= {"max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = DECODER | {"num_key_value_heads": 2, "head_dim": 8}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2}
ENCODER_DECODER = {"vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
ENCODER_DECODER |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 16}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16, "patch_size": 4}
FAMILIES = {
    "gpt2": GPT,
    "gptj": GPT | {"rotary_dim": 4},
    "gpt_neo": DECODER | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "gpt_neox": DECODER,
    "opt": DECODER | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4, "seq_length": 16},
    "llama": GROUPED,
    "mistral": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "gemma": GROUPED,
    "gemma2": GROUPED,
    "phi": DECODER,
    "phi3": GROUPED,
    "mixtral": GROUPED | {"num_local_experts": 4},
    "qwen2_moe": GROUPED | {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    "t5": {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "n_positions": 16},
    "bart": ENCODER_DECODER,
    "vit": VISION,
    "deit": VISION,
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 32, "patch_size": 4, "window_size": 4},
    "resnet": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "image_size": 32},
    "convnext": {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "image_size": 32},
}
PRODUCTS = ("mm", "attention", "conv", "moe")
"""Parts of the names of operators that do the work of a model."""
SEQ2SEQ = ("t5", "bart")
IMAGES = ("vit", "deit", "swin", "resnet", "convnext")


@pytest.fixture
def config_file(tmp_path):
    """Writes a config.json, from a text or from keys."""

    def write(text="", **keys):
        path = tmp_path / "config.json"
        path.write_text(text or json.dumps(keys), encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Any attempt to reach the hub fails."""

    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def keys_of(family):
    if family in SEQ2SEQ:
        return ["input_ids", "decoder_input_ids", "labels"]
    return ["pixel_values", "labels"] if family in IMAGES else ["input_ids", "labels"]


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, config_file):
    """Built on meta it is empty and in training mode; built on the CPU it trains on its batch."""
    source = hf_source(config_file(model_type=family, **FAMILIES[family]))
    with torch.device("meta"):
        empty = source.model()
    assert {"meta"} == {p.device.type for p in empty.parameters()}
    assert empty.training
    torch.manual_seed(0)
    model, batch = source.model(), source.inputs(2)
    args, kwargs = forward_arguments(model.forward, batch)
    loss = source.loss(model(*args, **kwargs), batch)
    loss.backward()
    assert keys_of(family) == list(batch)
    assert keys_of(family)[:-1] == list(kwargs)
    assert loss.isfinite()
    assert batch["labels"].numel() == source.weight(batch)
    assert {n: p.shape for n, p in model.named_parameters()} == {n: p.shape for n, p in empty.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_recorded(family, config_file):
    """A training step is recorded, with every matrix product's FLOPs and every parameter."""
    source = hf_source(config_file(model_type=family, **FAMILIES[family]))
    graph = trace(source, compute_dtype="bfloat16").low
    assert sum(p.numel() for p in source.model().parameters()) == sum(p.numel * graph.copies_of(p) for p in graph.parameters)
    assert [] == [op.target for op in (*graph.ops, *graph.backward) if any(word in op.target for word in PRODUCTS) and op.flop == 0]


def test_the_loss_is_not_shifted_again(config_file):
    """Labels are next tokens already: the loss is the plain cross entropy of logits, ignoring -100."""
    source = hf_source(config_file(model_type="llama", **GROUPED))
    model, batch = source.model().eval(), source.inputs(2)
    batch["labels"][0, 5:] = -100
    output = model(input_ids=batch["input_ids"])
    picked = output.logits.log_softmax(-1).gather(2, batch["labels"].clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected = -picked[batch["labels"] != -100].mean()
    torch.testing.assert_close(source.loss(output, batch), expected)
    assert source.weight(batch) == 21.0
    assert output.past_key_values is None


@pytest.mark.parametrize(("positions", "sequence"), [(16, 16), (131072, 2048)])
def test_sequence_length(positions, sequence, config_file):
    """Sequences fill the positions, up to 2048."""
    source = hf_source(config_file(model_type="llama", **GROUPED | {"max_position_embeddings": positions}))
    with torch.device("meta"):
        assert (3, sequence) == source.inputs(3)["input_ids"].shape


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [("BartForConditionalGeneration", 3), ("BartForCausalLM", 2), ("BartModel", 3)],
)
def test_the_architecture_decides_the_task(architecture, keys, config_file):
    """Of a model type with several tasks, the file's architecture picks one; a headless one gets the first."""
    source = hf_source(config_file(model_type="bart", architectures=[architecture], **ENCODER_DECODER))
    assert keys == len(source.inputs(1))
    assert f"config.json:{architecture}" == source.name


def test_dtype_of_the_file(config_file):
    """Parameters have the dtype that the file names, float32 if it names none."""
    for keys, dtype in (({}, torch.float32), ({"torch_dtype": "bfloat16"}, torch.bfloat16)):
        with torch.device("meta"):
            model = hf_source(config_file(model_type="llama", **GROUPED, **keys)).model()
        assert {dtype} == {p.dtype for p in model.parameters()}


def test_code_from_the_hub_is_not_run(config_file):
    """A model type that transformers knows is built from transformers even where the file refers to code on the hub."""
    keys = GROUPED | {"auto_map": {"AutoModelForCausalLM": "someone/somewhere--modeling.Model"}}
    model = hf_source(config_file(model_type="llama", **keys)).model()
    assert type(model).__module__.startswith("transformers.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "llama",\n  oops}', "config.json:2:3: not JSON"),
        ("[]", "config.json: no model_type, so this is not a transformers configuration; causal LM, seq2seq and image"),
        ('{"hidden_size": 3}', "config.json: no model_type"),
        ('{"model_type": "lama"}', "model_type 'lama' is unknown to the installed transformers, did you mean llama"),
        ('{"model_type": "wav2vec2"}', "model_type 'wav2vec2' has none of these tasks; causal LM, seq2seq and image classification"),
        ('{"model_type": "bert", "architectures": ["BertForMaskedLM"]}', "BertForMaskedLM is not supported; of bert, autopar plans causal LM"),
        ('{"model_type": "llama", "hidden_size": "big"}', "config.json: transformers refuses the configuration: "),
    ],
)
def test_unusable_file(content, message, config_file):
    """The message names the file, what is wrong and what is accepted."""
    with pytest.raises(ModelError) as raised:
        hf_source(config_file(content))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_file(tmp_path):
    """A missing file is a ModelError with its path."""
    with pytest.raises(ModelError, match=r"absent\.json: cannot be read"):
        hf_source(tmp_path / "absent.json")


def test_unbuildable_model(config_file):
    """What the model's constructor refuses is reported with the file's name."""
    source = hf_source(config_file(model_type="gpt_neo", **FAMILIES["gpt_neo"] | {"num_attention_heads": 5, "num_heads": 5}))
    with torch.device("meta"), pytest.raises(ModelError, match=r"config\.json: transformers cannot build the model: ValueError: .*divisible"):
        source.model()


def test_without_transformers(config_file, monkeypatch):
    """Without the extra, the message says how to get it."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"needs transformers .*: pip install autopar\[hf\]"):
        hf_source(config_file(model_type="llama", **GROUPED))
