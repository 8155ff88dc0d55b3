"""Whether a plan belongs to a model: the same parameters by name, shape, dtype and tie."""

from __future__ import annotations

from torch import nn

from planner.errors import MismatchError
from planner.ir.fingerprint import Row, fingerprint, rows
from planner.ir.plan import Plan


def model_rows(module: nn.Module) -> tuple[Row, ...]:
    """The rows of a module's fingerprint."""
    named = module.named_parameters(remove_duplicate=False)
    return rows((fqn, tuple(p.shape), str(p.dtype).removeprefix("torch."), id(p)) for fqn, p in named)


def check_model(module: nn.Module, plan: Plan) -> None:
    """MismatchError unless the plan was made for this model; the first placement without its parameter is named where there is one."""
    found = model_rows(module)
    digest = fingerprint(found)
    if digest == plan.model.fingerprint:
        return
    count = sum(p.numel() for p in module.parameters())
    raise MismatchError(
        f"the plan is for {plan.model.name} with {plan.model.parameters:,} parameters ({plan.model.fingerprint[:19]}), "
        f"this model has {count:,} ({digest[:19]}){missing(found, plan)}; plan this model again"
    )


def missing(found: tuple[Row, ...], plan: Plan) -> str:
    """The first name that the plan has and the model lacks, as a clause; empty if all are there."""
    fqns = {row.fqn for row in found}
    gone = (name for name, _ in plan.parameters if "*" not in name and name not in fqns)
    name = next(gone, "")
    return f": it has no parameter {name}" if name else ""
