"""The output tile that a library most likely takes for a product, and how the product's sizes fill it and the waves."""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.laws.matmul.gemm import gemm_law
from pyperf_suite.laws.matmul.gemm_menu import TILES, menu_times
from pyperf_suite.laws.matmul.tiling import ceil_div


@dataclass(frozen=True)
class TiledProduct:
    """C[m, n] cut into tiles of `rows` by `columns`, each in `splits` slices of K, one at a time on each of `sms`."""

    m: int
    n: int
    rows: int
    columns: int
    splits: int
    sms: int

    @property
    def tiles_m(self) -> int:
        """Tiles along M."""
        return int(ceil_div(self.m, self.rows))

    @property
    def tiles_n(self) -> int:
        """Tiles along N."""
        return int(ceil_div(self.n, self.columns))

    @property
    def units(self) -> int:
        """What is handed out to multiprocessors: tiles, or slices of them."""
        return self.tiles_m * self.tiles_n * self.splits

    @property
    def waves(self) -> int:
        """⌈units / multiprocessors⌉."""
        return int(ceil_div(self.units, self.sms))

    @property
    def last_wave(self) -> float:
        """Share of the multiprocessors that the last wave gives work to."""
        return self.units / self.sms - (self.waves - 1)

    @property
    def tile_efficiency(self) -> float:
        """Share of the tiles' area that is C."""
        return self.m * self.n / (self.tiles_m * self.rows * self.tiles_n * self.columns)

    @property
    def wave_efficiency(self) -> float:
        """Share of all waves' places that have work."""
        return self.units / (self.waves * self.sms)


def likely_tile(laws: GpuSpec | Calibration, dtype: str, m: int, n: int, k: int) -> TiledProduct:
    """The choice with the least time on the menu of the GPU's law; libraries do not tell theirs before they run.

    Raises UserError as `gemm_law` does.
    """
    law = gemm_law(laws, dtype)
    chosen = menu_times(law.coefficients, law.rates, m, n, k)
    rows, columns = TILES[int(chosen.tile)]
    return TiledProduct(m, n, rows, columns, int(chosen.splits), law.rates.sms)
