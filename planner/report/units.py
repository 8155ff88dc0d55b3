"""Numbers with their units, for people. Nothing else in the repository formats a unit."""

from __future__ import annotations

from dataclasses import dataclass


def gib(nbytes: float) -> str:
    """`79.6 GiB`; under a tenth of a GiB in MiB, KiB or B."""
    if nbytes >= 0.1 * 2**30:
        return f"{nbytes / 2**30:,.1f} GiB"
    if nbytes >= 0.1 * 2**20:
        return f"{nbytes / 2**20:.1f} MiB"
    if nbytes >= 0.1 * 2**10:
        return f"{nbytes / 2**10:.1f} KiB"
    return f"{nbytes:.0f} B" if nbytes else "0"


def duration(seconds: float) -> str:
    """`312 ms`, with three digits, from microseconds to seconds."""
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{_digits(seconds)} s"
    if seconds >= 1e-3:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds * 1e6)} us" if seconds else "0"


def percent(fraction: float) -> str:
    """`41.3 %`; what would round to zero is `< 0.1 %`."""
    if 0 < fraction < 0.0005:
        return "< 0.1 %"
    return f"{fraction * 100:.1f} %"


def count(number: float) -> str:
    """`8.03 B` parameters, `124 M`, `12,400`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{_digits(number / size)} {letter}"
    return f"{number:,.0f}"


def rate(per_s: float, what: str) -> str:
    """`12,300 samples/s` or `3.21 samples/s`."""
    return f"{f'{per_s:,.0f}' if per_s >= 100 else _digits(per_s)} {what}/s"


def amount(number: int, noun: str) -> str:
    """`1 sample`, `8 samples`, `2 microbatches`."""
    plural = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{plural}"


def work(flop: float) -> str:
    """`24.1 TFLOP`."""
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G")):
        if flop >= size:
            return f"{_digits(flop / size)} {letter}FLOP"
    return f"{_digits(flop / 1e6)} MFLOP" if flop >= 1e6 else f"{flop:,.0f} FLOP"


def _digits(number: float) -> str:
    """Three significant digits, at least."""
    if number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """One unit for a whole table."""

    name: str
    nbytes: int

    def text(self, nbytes: float) -> str:
        """The number without its unit."""
        return f"{nbytes / self.nbytes:.1f}"


def memory_unit(largest: float) -> MemoryUnit:
    """GiB for tables that reach one, MiB for smaller ones."""
    return MemoryUnit("GiB", 2**30) if largest >= 2**30 else MemoryUnit("MiB", 2**20)
