"""Why ranks cannot share a size, in words."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.graph import Graph, Op, Parameter, Region, Tensor, TensorArg
from planner.rules.legality import reasons

A, B = TensorArg(0), TensorArg(1)
WIDTH, TOKENS = 64, 6


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, "float32", name, True)


def model(heads: int = 8, kv_heads: int = 2, vocabulary: int = 96, extra: Sequence[Op] = ()) -> Graph:
    """An embedding and, folded, two layers with a query and a key projection into heads, which attention compares."""
    size = WIDTH // heads
    tensors = [tensor("table", vocabulary, WIDTH), tensor("ids", TOKENS), tensor("x", TOKENS, WIDTH)]
    parameters = [Parameter("table", ("tok.weight",), (vocabulary, WIDTH), "float32", True)]
    ops = [Op("e", "aten.embedding.default", ("table", "ids"), ("x",), (A, B), "tok", 0)]
    for name, count in (("wq", heads), ("wk", kv_heads)):
        out = count * size
        tensors += [tensor(name, out, WIDTH), tensor(name + "_t", WIDTH, out), tensor(name + "_y", TOKENS, out)]
        tensors += [tensor(name + "_h", TOKENS, count, size)]
        parameters.append(Parameter(name, (f"layers.0.attn.{name}.weight",), (out, WIDTH), "float32", True))
        module = f"layers.0.attn.{name}"
        ops += [
            Op(name + ".t", "aten.t.default", (name,), (name + "_t",), (A,), module, 0),
            Op(name + ".mm", "aten.mm.default", ("x", name + "_t"), (name + "_y",), (A, B), module, 0),
            Op(name + ".view", "aten.view.default", (name + "_y",), (name + "_h",), (A, (TOKENS, count, size)), "layers.0.attn", 0),
        ]
    tensors.append(tensor("o", TOKENS, heads, size))
    ops.append(Op("sdpa", "aten._scaled_dot_product_flash_attention.default", ("wq_h", "wk_h"), ("o",), (A, B), "layers.0.attn", 0))
    region = Region("layers.*", ("layers.0", "layers.1"), tuple(op.name for op in ops[1:]), ())
    return Graph((*ops, *extra), (), tuple(tensors), tuple(parameters), (), ("ids",), ("o",), "o", 1, (region,))


def sentences(graph: Graph, degree: int) -> list[str]:
    assert {f"tp={degree}"} >= {reason.what for reason in reasons(graph, degree)}
    return [reason.why for reason in reasons(graph, degree)]


def test_nothing_to_say_where_everything_divides() -> None:
    assert [] == sentences(model(), 2)
    assert [] == sentences(model(), 1)


def test_kv_heads_are_told_from_heads() -> None:
    assert ["2 KV heads (layers.*.attn.wk) are not divisible by tp 4"] == sentences(model(), 4)


def test_heads_and_vocabulary() -> None:
    """6 query heads on 4 ranks, an odd vocabulary, and the key projection's own width."""
    assert [
        "4 heads (layers.*.attn.wq, layers.*.attn.wk) are not divisible by tp 8",
        "vocabulary 50257 (tok) is not divisible by tp 8",
    ] == sentences(model(heads=4, kv_heads=4, vocabulary=50257), 8)


def test_an_operator_without_rule_switches_tensor_parallelism_off() -> None:
    lstm = Op("l", "lstm", ("x",), ("o",), (A,), "encoder", 0)
    assert ["no rule for lstm in encoder: tensor parallelism is off"] == sentences(model(extra=[lstm]), 2)
