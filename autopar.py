"""Public names of autopar, loaded when first used: `import autopar` itself costs nothing.

    job = autopar.parallelize(model, "plan.json", loss=loss_fn)

`python -m autopar` is the command line.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "parallelize": "planner.runtime.apply",
    "Job": "planner.runtime.job",
    "load_plan": "planner.ir.plan_json",
    "AutoparError": "planner.errors",
}
_NAMES = {"load_plan": "load"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), _NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted(_HOMES)


if __name__ == "__main__":
    import_module("planner.cli.main").main()
