"""How one operator may run along one mesh axis, and the collectives that a plan causes."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.placement import Layout


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """One kind of collective and how often it runs in a step, as the runtime's recorder counts it.

    `kind` is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or p2p. `axis` is the mesh axis. `nbytes` is the size of the
    full tensor on one rank: the result of an all_gather, the input of a reduce_scatter, all_reduce or all_to_all, the message of a p2p.
    `phase` is forward, backward or step (once per step, around the optimizer).
    """

    kind: str
    axis: str
    phase: str
    nbytes: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an op on an axis: layouts of inputs and outputs, in order.

    `divided` says whether each rank does 1/degree of the work (forward and backward) or all of it. `collectives` are those inside the
    operator itself (a vocabulary-parallel loss); redistributions at borders are not strategies of ordinary ops but of border ops.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    divided: bool
    collectives: tuple[Collective, ...] = ()

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"
