"""The rule table: which placements an operator may take on one mesh axis.

Each rule lists candidate strategies; here they are completed and filtered, the same way for all operators:

1. every rank may always compute everything (R -> R);
2. a slice exists only where the degree divides the dim;
3. a tensor without gradient has no gradient placement;
4. where no output has a gradient (comparisons, indices), a whole input may be consumed under R or R/P;
5. an operator that works in place leaves its first input where it was;
6. one tensor read twice has one layout;
7. a pending sum that backward has to copy (a reshape of a transposed gradient) is summed there: one all_reduce, declared.

Every strategy is checked against what DTensor does (tests/rules): no communication inside the operator beyond `Strategy.collectives`, and
the output and gradient placements stated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from planner.errors import RuleError
from planner.ir.graph import Op, Tensor
from planner.ir.placement import RP, Layout, R, without_grad
from planner.ir.strategy import Collective, Strategy
from planner.rules import attention, conv, create, dropout, einsum, embedding, loss, norm, pointwise, reduce, scatter, view
from planner.rules.border import transitions
from planner.rules.call import Call, Rule, Rules, replicated

RULES: Rules = {
    **attention.RULES,
    **conv.RULES,
    **create.RULES,
    **einsum.RULES,
    **embedding.RULES,
    **loss.RULES,
    **norm.RULES,
    **pointwise.RULES,
    **dropout.RULES,
    **reduce.RULES,
    **scatter.RULES,
    **view.RULES,
}


def has_rule(target: str) -> bool:
    """Whether the table covers the operator."""
    return target == "border" or target in RULES or _functional(target) in RULES


_COPY = "aten.clone.default"


def strategies(op: Op, tensors: Mapping[str, Tensor], degree: int, *, backward: Sequence[Op] = ()) -> tuple[Strategy, ...]:
    """Every way to run `op` on an axis of `degree` ranks, all-replicated first; a border's are its transitions.

    `backward` are the backward ops of `op`. What communicates inside the operator is in `Strategy.collectives`. RuleError names the operator
    and its module where the table has no rule.
    """
    call = Call(op, tuple(tensors[name] for name in op.inputs), tuple(tensors[name] for name in op.outputs), degree)
    if op.target == "border":
        return transitions(call.inputs[0], degree)
    rule = _rule(call)
    if degree == 1:
        return (replicated(call),)
    candidates = (_written(call, strategy) for strategy in (replicated(call), *rule(call)))
    found = (variant for strategy in candidates if _legal(call, strategy) for variant in _readings(call, strategy))
    if any(step.target == _COPY for step in backward):
        found = (_copied(call, strategy) for strategy in found)
    return tuple(dict.fromkeys(found))


def _copied(call: Call, strategy: Strategy) -> Strategy:
    """`strategy` where backward copies the arriving gradient: DTensor sums what is pending before it copies."""
    sums = [tensor for tensor, layout in zip(call.outputs, strategy.outputs, strict=True) if layout.grad.is_partial]
    if not sums:
        return strategy
    inputs = tuple(replace(layout, grad=layout.value) if layout.grad.is_partial else layout for layout in strategy.inputs)
    collectives = (Collective("all_reduce", "tp", "backward", tensor.nbytes) for tensor in sums)
    return replace(strategy, inputs=inputs, collectives=(*strategy.collectives, *collectives))


def _rule(call: Call) -> Rule:
    target = call.op.target
    rule = RULES.get(target) or RULES.get(_functional(target))
    if rule is None:
        raise RuleError(f"no rule for {target}{call.where}: it cannot run inside a tensor parallel region")
    return rule


def _functional(target: str) -> str:
    """`aten.relu_.default` works like `aten.relu.default`."""
    name, _, overload = target.rpartition(".")
    return f"{name.removesuffix('_')}.{overload}"


def _written(call: Call, strategy: Strategy) -> Strategy:
    return Strategy(
        _without(call.inputs, strategy.inputs),
        _without(call.outputs, strategy.outputs),
        strategy.divided,
        strategy.collectives,
    )


def _without(tensors: Iterable[Tensor], layouts: Iterable[Layout]) -> tuple[Layout, ...]:
    return tuple(layout if tensor.requires_grad else without_grad(layout) for tensor, layout in zip(tensors, layouts, strict=True))


def _legal(call: Call, strategy: Strategy) -> bool:
    slots = (*zip(call.inputs, strategy.inputs, strict=True), *zip(call.outputs, strategy.outputs, strict=True))
    if not all(_divides(tensor.shape, layout, call.degree) for tensor, layout in slots):
        return False
    in_place = call.op.target not in RULES
    return not in_place or strategy.inputs[0].value == strategy.outputs[0].value


def _divides(shape: tuple[int, ...], layout: Layout, degree: int) -> bool:
    if not layout.value.is_shard:
        return True
    size = shape[layout.value.dim]
    return size > 0 and size % degree == 0


def _readings(call: Call, strategy: Strategy) -> Iterator[Strategy]:
    """The strategy, in every way its inputs may be written where no gradient flows back, one layout per tensor."""
    silent = not any(tensor.requires_grad for tensor in call.outputs)
    options = [
        (R, RP) if silent and tensor.requires_grad and layout.value.is_replicate else (layout,)
        for tensor, layout in zip(call.inputs, strategy.inputs, strict=True)
    ]
    for inputs in product(*options):
        by_name = dict(zip(call.op.inputs, inputs, strict=True))
        if all(by_name[name] == layout for name, layout in zip(call.op.inputs, inputs, strict=True)):
            yield Strategy(inputs, strategy.outputs, strategy.divided, strategy.collectives)
