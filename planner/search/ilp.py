"""The placement problem as an integer linear program.

Variables x[n, c] in {0, 1}: node n makes choice c. Equations, each built by the method of that name:

    (1) pick one       sum_c x[n, c] = 1                                                        for every node n
    (2) agree          sum_{c: layout(a,i,c) = l} x[a, c] = sum_{c: layout(b,j,c) = l} x[b, c]     for every link and layout l
    (3) fit            sum memory(n, c) x[n, c] <= limit
    (4) minimise       sum cost(n, c) x[n, c]

Layouts are aggregated in (2): one row per distinct layout of a link, not one per pair of choices, which keeps the program 3-5 times smaller
with the same LP bound. The LP relaxation goes to GLOP; it is integral for almost every chain-like graph. Where it is not, SCIP solves the
integer program. Source of the aggregated form: the local polytope of a pairwise graphical model (Wainwright and Jordan 2008, section 4).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ortools.linear_solver import pywraplp

from planner.ir.placement import Layout
from planner.ir.problem import Problem, Solution, cost_s, is_consistent, memory_bytes

_INTEGRAL = 1e-6
_SECOND = 1e6  # costs enter the solver in microseconds, memory in MiB: both are then of order 1 to 1e6
_MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class _Program:
    solver: pywraplp.Solver
    variables: tuple[tuple[pywraplp.Variable, ...], ...]


def solve(problem: Problem, *, gap: float = 1e-4) -> Solution | None:
    """The cheapest consistent selection within the memory limit, or None if there is none.

    `gap` is the relative gap at which the integer program stops; the bound in the solution is proven either way.
    """
    if all(len(node.choices) == 1 for node in problem.nodes):
        return _only_choice(problem)
    program = _build(problem, "GLOP")
    if program.solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    bound_s = program.solver.Objective().Value() / _SECOND
    if not _is_integral(program):
        program = _build(problem, "SCIP")
        limits = pywraplp.MPSolverParameters()
        limits.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, gap)
        if program.solver.Solve(limits) not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            return None
        bound_s = max(bound_s, program.solver.Objective().BestBound() / _SECOND)
    picks = tuple(max(range(len(row)), key=lambda c, row=row: row[c].solution_value()) for row in program.variables)  # type: ignore[misc]
    total = cost_s(problem, picks)
    return Solution(picks, total, min(bound_s, total), memory_bytes(problem, picks))


def _only_choice(problem: Problem) -> Solution | None:
    picks = (0,) * len(problem.nodes)
    total, used = cost_s(problem, picks), memory_bytes(problem, picks)
    fits = problem.memory_limit is None or used <= problem.memory_limit
    return Solution(picks, total, total, used) if fits and is_consistent(problem, picks) else None


def _build(problem: Problem, engine: str) -> _Program:
    solver = pywraplp.Solver.CreateSolver(engine)
    variables = tuple(tuple(solver.BoolVar("") for _ in node.choices) for node in problem.nodes)
    program = _Program(solver, variables)
    _pick_one(program)
    _agree(program, problem)
    _fit(program, problem)
    _minimise(program, problem)
    return program


def _pick_one(program: _Program) -> None:
    for row in program.variables:
        equation = program.solver.Constraint(1, 1)
        for variable in row:
            equation.SetCoefficient(variable, 1)


def _agree(program: _Program, problem: Problem) -> None:
    for link in problem.links:
        ends = ((link.node, link.port, 1), (link.other, link.other_port, -1))
        rows: dict[Layout, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
        for node, port, sign in ends:
            for pick, choice in enumerate(problem.nodes[node].choices):
                rows[choice.ports[port]][node, pick] += sign  # a node may read one tensor twice
        for terms in list(rows.values())[1:]:  # the first follows from (1) and the others
            equation = program.solver.Constraint(0, 0)
            for (node, pick), sign in terms.items():
                equation.SetCoefficient(program.variables[node][pick], sign)


def _fit(program: _Program, problem: Problem) -> None:
    if problem.memory_limit is None:
        return
    equation = program.solver.Constraint(-program.solver.infinity(), problem.memory_limit / _MIB)
    for row, node in zip(program.variables, problem.nodes, strict=True):
        for variable, choice in zip(row, node.choices, strict=True):
            equation.SetCoefficient(variable, choice.memory_bytes / _MIB)


def _minimise(program: _Program, problem: Problem) -> None:
    objective = program.solver.Objective()
    for row, node in zip(program.variables, problem.nodes, strict=True):
        for variable, choice in zip(row, node.choices, strict=True):
            objective.SetCoefficient(variable, choice.cost_s * _SECOND)
    objective.SetMinimization()


def _is_integral(program: _Program) -> bool:
    return all(min(v.solution_value(), 1 - v.solution_value()) < _INTEGRAL for row in program.variables for v in row)
