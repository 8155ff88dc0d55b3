"""Who may import whom, as the design says; held with `ast` for every module of the packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path.relative_to(ROOT) for package in ("planner", "costmodels") for path in (ROOT / package).rglob("*.py"))

MAY_IMPORT = {
    "planner.errors": (),
    "planner.ir": ("planner.errors",),
    "planner.report": ("planner.ir", "planner.errors"),
    "planner.exports": ("planner.ir", "planner.errors"),
    "planner.prune": ("planner.ir", "planner.errors"),
    "planner.rules": ("planner.ir", "planner.errors"),
    "planner.trace": ("planner.ir", "planner.errors"),
    "planner.schedules": ("planner.ir", "planner.errors"),
    "planner.simulate": ("planner.schedules", "planner.ir", "planner.errors"),
    "planner.runtime": ("planner.schedules", "planner.ir", "planner.errors"),
    "planner.verify": ("planner.trace", "planner.runtime", "planner.schedules", "planner.ir", "planner.errors"),
    "planner.search": ("planner.rules", "planner.prune", "planner.schedules", "planner.ir", "planner.errors", "costmodels.hardware"),
    "planner.driver": ("planner.search", "planner.prune", "planner.simulate", "planner.ir", "planner.errors", "costmodels.hardware"),
    "planner.cli": ("planner.ir", "planner.errors", "costmodels.errors", "costmodels.hardware"),
    "costmodels": (),
}
"""By room: what its modules may import at the top, besides their own room. `cli` may import everything inside functions."""

EXTRA = {
    "planner.search.price": ("costmodels",),
}
"""Single modules that may import more than their room."""

TORCH = ("planner.trace", "planner.runtime", "planner.verify", "costmodels.measure")
SOLVER = ("planner.search",)


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def imports(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[str]:
    """The modules named by import statements; `from planner.ir import plan_json` names planner.ir.plan_json."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / Path(*inner.split("."))).with_suffix(".py").exists()
                yield inner if is_module else str(node.module)


def everywhere(path: Path) -> set[str]:
    return set(imports(ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))))


def at_top(path: Path) -> set[str]:
    return set(imports(ast.parse((ROOT / path).read_text(encoding="utf-8")).body))


def room_of(name: str) -> str:
    return next((room for room in sorted(MAY_IMPORT, key=len, reverse=True) if within(name, (room,))), "")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_keep_to_the_table(path: Path) -> None:
    """A module imports from its own room and from those the table allows, anywhere in the file; `cli` is free inside functions."""
    name = module_name(path)
    room = room_of(name)
    if path.name == "__init__.py":
        assert set() == everywhere(path), "package __init__ files import nothing"
        return
    assert room, f"{name} belongs to no room of the table"
    ours = {
        found for found in (at_top(path) if room == "planner.cli" else everywhere(path)) if within(found, ("planner", "costmodels", "autopar"))
    }
    allowed = (room, *MAY_IMPORT[room], *EXTRA.get(name, ()))
    assert set() == {found for found in ours if not within(found, allowed)}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_torch_and_solver_stay_in_their_rooms(path: Path) -> None:
    """torch only where tensors are, ortools only in the search; `cli` may look for GPUs inside a function."""
    name = module_name(path)
    found = at_top(path) if room_of(name) == "planner.cli" else everywhere(path)
    assert within(name, TORCH) or not any(within(each, ("torch", "transformers")) for each in found)
    assert within(name, SOLVER) or not any(within(each, ("ortools",)) for each in found)


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "__init__.py"], ids=str)
def test_every_module_says_what_it_is(path: Path) -> None:
    """Every module has a docstring."""
    assert ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
