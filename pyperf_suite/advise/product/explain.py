"""One matrix product explained: its time by cause, its tiles and waves, what bounds it, and better sizes nearby."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.advise.product.likely_tile import TiledProduct
from pyperf_suite.advise.sizing.causes import legend
from pyperf_suite.advise.sizing.prices import NORMAL_QUANTILE, Prices, deviation_of
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.matmul.alignment import elements_in, largest_power_of_two
from pyperf_suite.spec.findings import Findings, Table

LAYOUTS = ("TN", "NN", "NT", "TT")
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 1}
# Far above any product of a model, and low enough that counts of FLOP stay exact enough.
LARGEST = 1 << 26
# Tensor cores and TMA take runs of 16 bytes whole; 128 bytes are best (NVIDIA, linear-layer guide).
NEEDED_BYTES, BEST_BYTES = 16, 128
# Sizes are looked for from this much smaller to this much larger.
WINDOW = 0.25
# As good as the best rate in the window: nearer than repeated measurements are to each other.
AS_GOOD = 0.01
MOST_SIZES = 4096
UNSURE = "within what the law may err"


@dataclass(frozen=True)
class BetterSize:
    """Another size for one dimension: seconds then, and the rate of useful work over the present one.

    The ratio is between `low` and `high` in nine cases of ten, where the law errs at both sizes independently.
    """

    dimension: str
    present: int
    size: int
    seconds: float
    rate_ratio: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether it is better beyond what the law may err."""
        return self.low > 1


@dataclass(frozen=True)
class ProductExplained:
    """What the laws say of C[m,n] = A[m,k]·B[k,n] on a GPU; seconds by cause add up to `seconds`."""

    gpu: str
    m: int
    n: int
    k: int
    dtype: str
    layout: str
    seconds: float
    causes: dict[str, float]
    extrapolated: bool
    error_percent: float | None
    origin: str
    tiled: TiledProduct
    peak_flop_per_s: float
    flop_per_byte: float
    turning_flop_per_byte: float
    divisors: dict[str, int]
    better: tuple[BetterSize, ...]

    @property
    def flop_per_s(self) -> float:
        """2·M·N·K over the time."""
        return 2.0 * self.m * self.n * self.k / self.seconds

    @property
    def is_compute_bound(self) -> bool:
        """Whether it does more FLOP a byte than the GPU can feed."""
        return self.flop_per_byte >= self.turning_flop_per_byte


def check_product(m: int, n: int, k: int, layout: str) -> None:
    """Raise UserError for sizes and layouts that there are not."""
    if not all(1 <= size <= LARGEST for size in (m, n, k)):
        raise UserError(f"M, N and K have to lie between 1 and {LARGEST}, but {m} x {n} x {k} was asked for.")
    if layout not in LAYOUTS:
        raise UserError(f"There is no layout {layout!r}: choose from {', '.join(LAYOUTS)}.")


def explain_product(
    gpu: GpuSpec, prices: Prices, tiled: TiledProduct, m: int, n: int, k: int, dtype: str, layout: str
) -> ProductExplained:
    """Ask the laws for one product and its neighbours; `tiled` is how the library likely cuts it.

    Raises UserError for sizes, dtypes and layouts that there are not.
    """
    check_product(m, n, k, layout)
    peak = gpu.peak(dtype)
    explained = prices.gemm(layout, *(np.array([size]) for size in (m, n, k)))
    element = ELEMENT_BYTES[dtype]
    # Results of 8-bit products are written in 16.
    moved = element * (m * k + k * n) + max(2, element) * m * n
    return ProductExplained(
        gpu=gpu.name,
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        layout=layout,
        seconds=float(explained.seconds[0]),
        causes={cause: float(np.broadcast_to(seconds, (1,))[0]) for cause, seconds in explained.parts.items()},
        extrapolated=bool(np.any(explained.extrapolated)),
        error_percent=explained.error_percent,
        origin=explained.origin,
        tiled=tiled,
        peak_flop_per_s=peak,
        flop_per_byte=2.0 * m * n * k / moved,
        turning_flop_per_byte=peak / gpu.memory_bytes_per_s,
        divisors={name: largest_power_of_two(size) for name, size in (("M", m), ("N", n), ("K", k))},
        better=tuple(_better_sizes(prices, {"M": m, "N": n, "K": k}, element, layout)),
    )


def _better_sizes(prices: Prices, sizes: dict[str, int], element_bytes: int, layout: str) -> list[BetterSize]:
    """For each dimension the next smaller and the next larger size of about the best rate on that side.

    Sides on which no size is better than the present one are left out.
    """
    found = []
    for name, present in sizes.items():
        step = elements_in(NEEDED_BYTES, element_bytes)
        # Steps stay whole runs, and coarse enough for a handful of sizes.
        step *= max(1, int(2 * WINDOW * present / step / MOST_SIZES))
        around = np.arange(max(step, int(present * (1 - WINDOW)) // step * step), present * (1 + WINDOW) + step, step)
        asked = {other: np.full(len(around) + 1, size) for other, size in sizes.items()}
        asked[name] = np.concatenate([[present], around.astype(np.int64)])
        explained = prices.gemm(layout, asked["M"], asked["N"], asked["K"])
        seconds, margin = np.asarray(explained.seconds), np.exp(NORMAL_QUANTILE * 2**0.5 * deviation_of(explained))
        rate = asked[name] / seconds
        for side in (asked[name] < present, asked[name] > present):
            good = np.flatnonzero(side & (rate >= (1 - AS_GOOD) * np.max(rate[side], initial=0.0)))
            if len(good):
                nearest = good[np.argmin(np.abs(asked[name][good] - present))]
                if rate[nearest] > (1 + AS_GOOD) * rate[0]:
                    ratio = float(rate[nearest] / rate[0])
                    size, its_seconds = int(asked[name][nearest]), float(seconds[nearest])
                    found.append(
                        BetterSize(
                            name, present, size, its_seconds, ratio, float(ratio / margin), float(ratio * margin)
                        )
                    )
    return found


def findings_of_product(product: ProductExplained) -> Findings:
    """Sentences, the table of causes and the table of better sizes."""
    return Findings(
        remarks=(
            _time_sentence(product),
            _tile_sentence(product),
            _bound_sentence(product),
            _alignment_sentence(product),
            *([_EXTRAPOLATED] if product.extrapolated else []),
            *([] if product.better else ["No size up to a quarter smaller or larger does its work faster."]),
            legend(cause for cause, _ in _told_causes(product)),
        ),
        tables=tuple(table for table in (_causes(product), _sizes(product)) if table.rows),
    )


_EXTRAPOLATED = (
    "The law was not fitted on this: it extrapolates to these sizes, this dtype or this GPU, and may err by more than "
    "it says."
)


def _time_sentence(product: ProductExplained) -> str:
    error = (
        f"the law errs by {product.error_percent:.1f} % on what it was not fitted on"
        if product.error_percent is not None
        else "the law was held against no measurement"
    )
    return (
        f"C[{product.m},{product.n}] = A[{product.m},{product.k}] B[{product.k},{product.n}], {product.dtype} "
        f"{product.layout} on {product.gpu}: predicted {microseconds(product.seconds)}, "
        f"{product.flop_per_s / 1e12:.0f} TFLOP/s, {product.flop_per_s / product.peak_flop_per_s:.0%} of the peak; "
        f"{error}{f' ({product.origin})' if product.origin else ''}."
    )


def _tile_sentence(product: ProductExplained) -> str:
    tiled = product.tiled
    waves = "1 wave" if tiled.waves == 1 else f"{tiled.waves} waves"
    split = f" x {tiled.splits} slices of K" if tiled.splits > 1 else ""
    return (
        f"The library's likely tile is {tiled.rows}x{tiled.columns}: {tiled.tiles_m} x {tiled.tiles_n} tiles{split} = "
        f"{tiled.units}, {waves} on {tiled.sms} multiprocessors, the last one {tiled.last_wave:.0%} full; "
        f"{tiled.tile_efficiency:.1%} of the tiles' area and {tiled.wave_efficiency:.1%} of the waves are used."
    )


def _bound_sentence(product: ProductExplained) -> str:
    bound = "computing" if product.is_compute_bound else "memory"
    return (
        f"It is bound by {bound}: {product.flop_per_byte:.0f} FLOP a byte, where {product.gpu} turns from memory to "
        f"computing at {product.turning_flop_per_byte:.0f}."
    )


def _alignment_sentence(product: ProductExplained) -> str:
    element = ELEMENT_BYTES[product.dtype]
    needed, best = elements_in(NEEDED_BYTES, element), elements_in(BEST_BYTES, element)
    rows = {name: product.divisors[name] for name in contiguous(product.layout)}
    odd = [name for name, divisor in rows.items() if divisor < needed]
    fair = [name for name, divisor in rows.items() if needed <= divisor < best]
    told = ", ".join(f"{name} by {divisor}" for name, divisor in product.divisors.items())
    if odd:
        return (
            f"Divisible: {told}; {' and '.join(odd)}, along which rows lie in memory, below the {needed} that tensor "
            f"cores and TMA take whole ({NEEDED_BYTES} bytes)."
        )
    if fair:
        return (
            f"Divisible: {told}; {' and '.join(fair)}, along which rows lie in memory, below the {best} that fill "
            f"{BEST_BYTES} bytes."
        )
    return f"Divisible: {told}; {' and '.join(rows)}, along which rows lie in memory, fill {BEST_BYTES} bytes."


def contiguous(layout: str) -> list[str]:
    """The dimensions that lie along rows of A, B or C as stored, whose divisibility counts."""
    of_a, of_b = "M" if layout[1] == "T" else "K", "K" if layout[0] == "T" else "N"
    return sorted({of_a, of_b, "N"}, key="MNK".index)


def _told_causes(product: ProductExplained) -> list[tuple[str, float]]:
    """The causes that are worth a row, with their seconds, the largest first."""
    told = [(cause, seconds) for cause, seconds in product.causes.items() if abs(seconds) >= 0.0005 * product.seconds]
    return sorted(told, key=lambda each: -abs(each[1]))


def _causes(product: ProductExplained) -> Table:
    rows = [
        (cause, f"{seconds * 1e6:.1f}", f"{seconds / product.seconds:.1%}") for cause, seconds in _told_causes(product)
    ]
    return Table("Where the time goes", ("cause", "us", "share"), tuple(rows))


def _sizes(product: ProductExplained) -> Table:
    rows = [
        (
            better.dimension,
            str(better.present),
            str(better.size),
            f"{better.size / better.present - 1:+.1%}",
            f"{better.seconds * 1e6:.1f}",
            f"{better.seconds / product.seconds - 1:+.1%}",
            f"{better.rate_ratio:.3f} x ({better.low:.3f} to {better.high:.3f})" if better.is_sure else UNSURE,
        )
        for better in product.better
    ]
    columns = ("dimension", "now", "good size", "size", "us", "time", "work a second")
    return Table("Next good sizes", columns, tuple(rows))


def product_as_json(product: ProductExplained) -> dict[str, Any]:
    """The same for other programs; seconds and FLOP/s."""
    tiled = product.tiled
    return {
        "gpu": product.gpu,
        "product": {"m": product.m, "n": product.n, "k": product.k, "dtype": product.dtype, "layout": product.layout},
        "seconds": product.seconds,
        "causes_s": product.causes,
        "flop_per_s": product.flop_per_s,
        "share_of_peak": product.flop_per_s / product.peak_flop_per_s,
        "extrapolated": product.extrapolated,
        "held_out_error_percent": product.error_percent,
        "origin": product.origin,
        "likely_tile": {
            "tile": [tiled.rows, tiled.columns],
            "tiles": tiled.tiles_m * tiled.tiles_n,
            "splits": tiled.splits,
            "waves": tiled.waves,
            "last_wave": tiled.last_wave,
            "tile_efficiency": tiled.tile_efficiency,
            "wave_efficiency": tiled.wave_efficiency,
        },
        "bound": "compute" if product.is_compute_bound else "memory",
        "divisible_by": product.divisors,
        "better_sizes": [vars(better) | {"sure": better.is_sure} for better in product.better],
    }


def microseconds(seconds: float) -> str:
    """A time to read: 12.3 us, 4.56 ms."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
