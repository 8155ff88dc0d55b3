"""Numbers on the command line, bounded far beyond any machine: what is predicted from them stays finite, and the search for it ends."""

from __future__ import annotations

import math

import click

MOST_GPUS = 1_000_000
MOST_SAMPLES = 1_000_000_000
MOST_GIB = 1e6
MOST_SECONDS = 1e9


class Amount(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A finite number above 0 and at most `most`."""

    name = "number"

    def __init__(self, most: float) -> None:
        self.most = most

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; anything else is a usage error."""
        number = float(click.FLOAT(value, param, ctx))
        if math.isnan(number) or not 0 < number <= self.most:
            self.fail(f"{value!r} is not a number above 0 and at most {self.most:,.0f}", param, ctx)
        return number
