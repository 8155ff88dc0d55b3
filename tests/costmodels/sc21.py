"""Table 1 of Narayanan et al., SC21 (arXiv:2104.04473), and what equations 2 and 3 give for it."""

from __future__ import annotations

from dataclasses import dataclass

VOCABULARY = 51_200
SEQUENCE = 2048


@dataclass(frozen=True, slots=True)
class Row:
    """One model and the layout it was trained with; `billions` is the size as printed."""

    billions: float
    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    virtual: int
    microbatch: int
    batch: int
    devices: int
    tflop_per_s: float
    parameters: int
    flop: int
    iteration_s: float

    @property
    def dp(self) -> int:
        return self.devices // (self.tp * self.pp)

    @property
    def microbatches(self) -> int:
        return self.batch // (self.dp * self.microbatch)


TABLE_1 = (
    Row(1.7, 24, 2304, 24, 1, 1, 1, 16, 512, 32, 137, 1652226048, 15466830067924992, 3.528),
    Row(3.6, 32, 3072, 30, 2, 1, 1, 16, 512, 64, 138, 3562162176, 32655495344947200, 3.697),
    Row(7.5, 32, 4096, 36, 4, 1, 1, 16, 512, 128, 142, 7467778048, 67184558503624704, 3.696),
    Row(18.4, 48, 6144, 40, 8, 1, 1, 8, 1024, 256, 135, 18449743872, 324839715310141440, 9.399),
    Row(39.1, 64, 8192, 48, 8, 2, 1, 4, 1536, 512, 138, 39096025088, 1021226399878348800, 14.453),
    Row(76.1, 80, 10240, 60, 8, 4, 3, 2, 1792, 1024, 140, 76050718720, 2302047495074611200, 16.058),
    Row(145.6, 96, 12288, 80, 8, 8, 2, 2, 2304, 1536, 148, 145622237184, 5641682123048878080, 24.817),
    Row(310.1, 128, 16384, 96, 8, 16, 2, 1, 2160, 1920, 155, 310130507776, 11194006936108400640, 37.614),
    Row(529.6, 128, 20480, 105, 8, 35, 3, 1, 2520, 2520, 163, 529600778240, 22215941676859392000, 54.085),
    Row(1008.0, 160, 25600, 128, 8, 64, 1, 1, 3072, 3072, 163, 1008038707200, 51390513775273574400, 102.630),
)
