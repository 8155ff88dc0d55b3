"""Matrix products: mm, addmm, bmm, baddbmm, mv, dot.

Written as an equation such as `bmk,bkn->bmn`, a letter may be split over the ranks:

    in both inputs and the output   every rank has its batches
    in one input and the output     the other input is whole, its gradient a sum over the ranks
    in both inputs only             the contraction: the output is a sum over the ranks

(the table of the three cases of a distributed einsum; Xu et al., GSPMD, 2021, section 3.2). A product is also linear in each input and in
the gradient, so summands may pass through it. The bias of addmm and baddbmm follows the output; where the output is a sum, DTensor keeps
the bias on one rank and zeros elsewhere, without communication.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir.placement import RP, Layout, P, R, S
from planner.ir.strategy import Strategy
from planner.rules.call import Call, Rule, Rules, divided, partial_gradient, repeated


def einsum(left: str, right: str, out: str) -> tuple[Strategy, ...]:
    """All strategies of the equation `left,right->out`."""
    split = tuple(
        divided((_side(letter, left), _side(letter, right)), _side(letter, out) if letter in out else P)
        for letter in dict.fromkeys(left + right)
    )
    return (*split, repeated((P, RP), P), repeated((RP, P), P))


def _side(letter: str, operand: str) -> Layout:
    return S(operand.index(letter)) if letter in operand else RP


def product(left: str, right: str, out: str) -> Rule:
    """The rule of a product of two tensors."""

    def rule(call: Call) -> Iterator[Strategy]:
        yield from einsum(left, right, out)
        yield partial_gradient(call)

    return rule


def biased_product(left: str, right: str, out: str) -> Rule:
    """The rule of bias + product, the bias broadcast to the output."""

    def rule(call: Call) -> Iterator[Strategy]:
        bias = call.shapes[0]
        for strategy in einsum(left, right, out):
            yield Strategy((_bias(strategy.outputs[0], bias, len(out)), *strategy.inputs), strategy.outputs, strategy.divided)
        yield partial_gradient(call)

    return rule


def _bias(out: Layout, shape: tuple[int, ...], ndim: int) -> Layout:
    if not out.value.is_shard:
        return R if out == P else out
    dim = out.value.dim - (ndim - len(shape))
    return S(dim) if dim >= 0 and shape[dim] > 1 else RP


def dot(call: Call) -> Iterator[Strategy]:
    """A product of vectors; DTensor lets no sums through it."""
    yield divided((S(0), S(0)), P)
    yield partial_gradient(call)


RULES: Rules = {
    "aten.dot.default": dot,
    "aten.mv.default": product("mk", "k", "m"),
    "aten.mm.default": product("mk", "kn", "mn"),
    "aten.bmm.default": product("bmk", "bkn", "bmn"),
    "aten.addmm.default": biased_product("mk", "kn", "mn"),
    "aten.baddbmm.default": biased_product("bmk", "bkn", "bmn"),
}
