"""The errors a user can meet. Each message says what is wrong, with the numbers, and what to change.

    AutoparError (ValueError)
    |-- ModelError          the model file, its functions, its inputs
    |   `-- TraceError      the training step could not be recorded
    |-- ClusterError        the cluster description or an option that does not fit it
    |-- InfeasibleError     no plan satisfies the constraints
    |-- PlanError           a plan file that cannot be read
    |   `-- MismatchError   a plan that does not belong to this model, world or torch
    `-- RuleError           an operator that no rule covers where one is needed

The command line turns every AutoparError into one line on stderr and exit code 1.
"""


class AutoparError(ValueError):
    """Base of every mistake that a user can correct."""


class ModelError(AutoparError):
    """The model file, its functions or its inputs are unusable."""


class TraceError(ModelError):
    """The training step could not be recorded."""


class ClusterError(AutoparError):
    """The cluster description is wrong, or an option does not fit it."""


class InfeasibleError(AutoparError):
    """No plan satisfies the constraints."""


class PlanError(AutoparError):
    """A plan file cannot be read."""


class MismatchError(PlanError):
    """A plan does not belong to this model, this world size or this torch."""


class RuleError(AutoparError):
    """An operator that no rule covers stands where one is needed."""
