"""The output tile that a library most likely takes for a product, and what it makes of the product's sizes.

Libraries do not tell before they run; this is the tile of a usual menu that leaves the least work to the busiest SM.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.laws.gemm_menu import TILES
from pyperf_suite.laws.tiling import Tile, ceil_div, tile_count, tile_efficiency, wave_count, wave_efficiency

K_STEP = 64  # of 16-bit elements in the usual stage of 128 bytes; it decides nothing here
# A tile reads (m + n)·k of operands for m·n·k multiplications; below the side of this square that is felt.
FULL_SIDE = 128


@dataclass(frozen=True)
class TiledProduct:
    """A product cut into tiles of that size, one at a time on each of `sms` multiprocessors."""

    tile: Tile
    tiles_m: int
    tiles_n: int
    waves: int
    last_wave: float
    tile_efficiency: float
    wave_efficiency: float
    sms: int

    @property
    def tiles(self) -> int:
        """Tiles in all."""
        return self.tiles_m * self.tiles_n


def likely_tile(m: int, n: int, sms: int) -> TiledProduct:
    """The tile of the menu with the least time of the busiest SM: waves · tile area, small tiles at a lower rate."""

    def busiest(tile: Tile) -> float:
        side = 2 * tile.m * tile.n / (tile.m + tile.n)
        waves = int(wave_count(tile_count(m, n, tile), sms))
        return waves * tile.m * tile.n * max(1.0, (FULL_SIDE / side) ** 0.5)

    tile = min((Tile(*sides, K_STEP) for sides in TILES), key=busiest)
    tiles = int(tile_count(m, n, tile))
    waves = int(wave_count(tiles, sms))
    return TiledProduct(
        tile,
        int(ceil_div(m, tile.m)),
        int(ceil_div(n, tile.n)),
        waves,
        (tiles - (waves - 1) * sms) / sms,
        float(tile_efficiency(m, n, tile)),
        float(wave_efficiency(tiles, sms)),
        sms,
    )
