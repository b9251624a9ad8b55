"""One matrix product explained: its time by cause, its likely tiles and waves, what bounds it, better sizes nearby."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.findings.data import Findings, Remark, findings, remark
from pyperf_suite.findings.rows import Column, table
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.tiling import elements_in, largest_power_of_two, round_up
from pyperf_suite.planner.laws.alignment import BYTES_OF, PADDED_DTYPES, SIDE_BY_SIDE, alignment_penalty
from pyperf_suite.planner.laws.calibration import Calibration
from pyperf_suite.planner.laws.explained import Explained, counted, legend
from pyperf_suite.planner.laws.gemm import TILES, gemm_law, library_spread, menu_choice
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.record.quantity import Quantity

# Tensor cores and TMA take runs of 16 bytes whole; 128 bytes are best (NVIDIA, linear-layer guide).
NEEDED_BYTES, BEST_BYTES = 16, 128
# Sizes are looked for from this much smaller to this much larger.
WINDOW = 0.25
# A gain that counts: nearer than repeated measurements are to each other. Of a size far from the nearest that wins, a
# gain on that one: the law's own error.
GAIN, FAR_GAIN = 0.01, 0.03
# Growth, as a share of a size, that costs a model next to nothing.
LITTLE_GROWTH = 0.02
# The dimension that counts tokens, by layout, and so is none of a model: M, or of a weight's gradient K.
TOKENS = {"NT": "K"}
MOST_SIZES = 4096
# Sizes on each side that are looked at one by one: 2 % of a vocabulary of 200,000.
MOST_NEAR = 512
LIBRARY_NAMES = {"trtllm": "TensorRT-LLM", "sglang": "SGLang", "vllm": "vLLM", "cublas": "cuBLAS (PyTorch)"}


@dataclass(frozen=True)
class BetterSize:
    """Another size for a dimension, or for several together: its seconds, and its work a second over the present one's.

    The ratio is between `low` and `high` in nine cases of ten.
    """

    present: Mapping[str, int]
    sizes: Mapping[str, int]
    seconds: float
    rate_ratio: float
    low: float
    high: float

    @property
    def growth(self) -> float:
        """Elements of the dimensions over those at present, less one."""
        return math.prod(self.sizes.values()) / math.prod(self.present.values()) - 1

    @property
    def has_less(self) -> bool:
        """True if any dimension is smaller than at present."""
        return any(size < self.present[name] for name, size in self.sizes.items())


@dataclass(frozen=True)
class ProductExplained:
    """The laws' answer for C[M,N] = A[M,K]·B[K,N] on a GPU: the price under a sustained load, and better sizes.

    `tile` has the rows and columns of the library's likely tile, and its slices of K. `others` has the time of each
    other library's relative to this one's, in a burst. Without `has_steps` it is hardly known at which M the library
    takes another tile.
    """

    spec: GpuSpec
    sizes: Mapping[str, int]
    dtype: str
    layout: str
    price: Explained
    better: tuple[BetterSize, ...]
    tile: tuple[int, int, int]
    others: Mapping[str, float]
    has_steps: bool

    @property
    def findings(self) -> Findings:
        """Its time, how it is cut, what bounds it, and the sizes nearby that do their work faster."""
        causes = [(cause, seconds) for cause, seconds in self.causes.items() if abs(seconds) >= 0.0005 * self.seconds]
        causes.sort(key=lambda each: -abs(each[1]))
        return findings(
            _answer(self),
            _time(self),
            _tiles(self),
            None if self.has_steps else _STEPLESS,
            _bound(self),
            _alignment(self),
            _EXTRAPOLATED if np.any(self.price.extrapolated) else None,
            table("Next good sizes", SIZES, [(better, self) for better in self.better]),
            table("Where the time goes", CAUSES, [(cause, seconds, self) for cause, seconds in causes]),
            remark(legend(cause for cause, _ in causes)),
        )

    def _repr_markdown_(self) -> str:
        """The findings, as a notebook shows them."""
        from pyperf_suite.render.text import markdown_of

        return "\n".join(markdown_of(self.findings))

    @property
    def seconds(self) -> float:
        return float(self.price.seconds[0])

    @property
    def causes(self) -> dict[str, float]:
        """Seconds by cause, which add up to `seconds`."""
        return {cause: float(np.squeeze(seconds)) for cause, seconds in self.price.parts.items()}

    @property
    def flop(self) -> float:
        return 2.0 * math.prod(self.sizes.values())

    @property
    def moved_bytes(self) -> float:
        """Bytes of all operands, once; results of 8-bit products are written in 16."""
        (m, n, k), element = self.sizes.values(), int(BYTES_OF[self.dtype])
        return element * (m * k + k * n) + max(2, element) * m * n

    @property
    def compute_s(self) -> float:
        """The time of 2·M·N·K at the peak."""
        return self.flop / self.spec.peak(self.dtype)

    @property
    def memory_s(self) -> float:
        """The time of reading and writing all operands once."""
        return self.moved_bytes / self.spec.memory_bytes_per_s


def explain_product(
    laws: GpuSpec | Calibration,
    sizes: tuple[int, int, int],
    dtype: str,
    layout: str,
    library: str | None = None,
    prices: Prices | None = None,
) -> ProductExplained:
    """Price one product by the kernels of a library, and its neighbours, under a sustained load.

    Raises UserError as `gemm_time` does.
    """
    (m, n, k), prices, law = sizes, prices or Prices(laws, dtype, library=library), gemm_law(laws, dtype, library)
    price = prices.gemm(layout, np.array([m]), np.array([n]), np.array([k]))
    # The choice with the least time on the menu of the law; libraries do not report theirs before they run.
    _, tile, splits = menu_choice(law.coefficients, law.rates, m, n, k)
    spread = {name: float(seconds) for name, seconds in library_spread(laws, m, n, k, dtype).items()}
    own_s, named = spread.pop(law.library), dict(zip("MNK", sizes, strict=True))
    better = tuple(_better_sizes(prices, law.gpu, named, dtype, layout))
    others = {name: seconds / own_s for name, seconds in spread.items()}
    tiling = (*TILES[int(tile)], int(splits))
    return ProductExplained(law.gpu, named, dtype, layout, price, better, tiling, others, law.rates.steps)


def _better_sizes(prices: Prices, gpu: GpuSpec, sizes: dict[str, int], dtype: str, layout: str) -> Iterator[BetterSize]:
    """For each dimension of a model the nearest larger and the nearest smaller size that surely win.

    To win is more work a second than at the present size, by more than the law's error. Further sizes follow if they
    win more: within `LITTLE_GROWTH` by time, as of a padded vocabulary, and far away by work a second. Where rows of
    several dimensions are odd these are padded together, for the worst row decides; the others are left. For
    PADDED_DTYPES the nearest whole rows come first, for libraries take no others.
    """
    run, offered = elements_in(NEEDED_BYTES, int(BYTES_OF[dtype])), set()
    dimensions = [name for name in "NMK" if name != TOKENS.get(layout, "M")]
    odd = _odd_rows(sizes, dtype, layout)
    for name in odd or dimensions:
        padded = {other: round_up(sizes[other], run) for other in odd if other != name}
        present = {each: sizes[each] for each in "MNK" if each == name or each in padded}
        tried = _around(sizes | padded, name, run, sizes)
        seconds, ratio, low, high = _against_the_first(prices, gpu, tried, dtype, layout)
        wins, place = (ratio > 1 + GAIN) & (low >= 1), tried[name] - sizes[name]
        wins |= (np.abs(place) < run) & (name in odd and dtype in PADDED_DTYPES)
        for at in (*_picked(seconds, ratio, wins, place, sizes[name]), *_picked(seconds, ratio, wins, -place, 0)):
            found = {each: int(tried[each][at]) for each in present}
            if tuple(found.items()) not in offered:
                offered.add(tuple(found.items()))
                yield BetterSize(present, found, *(float(each[at]) for each in (seconds, ratio, low, high)))


def _odd_rows(sizes: Mapping[str, int], dtype: str, layout: str) -> list[str]:
    """Dimensions along which rows of an operand lie that are no whole `NEEDED_BYTES`."""
    run = elements_in(NEEDED_BYTES, int(BYTES_OF[dtype]))
    return [name for name in "NMK" if name.lower() in SIDE_BY_SIDE[layout] and sizes[name] % run]


def _picked(
    seconds: NDArray[np.float64],
    ratio: NDArray[np.float64],
    wins: NDArray[np.bool_],
    distance: NDArray[np.int64],
    size: int,
) -> list[int]:
    """Pick among sizes at positive distances the nearest that wins, and those further away that win more."""
    side = np.flatnonzero(wins & (distance > 0))
    if not len(side):
        return []
    side = side[np.argsort(distance[side])]
    picked = [int(side[0])]
    for reach, rate, gain in ((LITTLE_GROWTH * size, 1 / seconds, GAIN), (math.inf, ratio, FAR_GAIN)):
        near = side[distance[side] <= reach]
        better = near[rate[near] > (1 + gain) * rate[picked[-1]]]
        if len(better):
            good = better[rate[better] * (1 + GAIN) >= np.max(rate[better])]
            picked.append(int(good[0]))
    return picked


def _around(sizes: dict[str, int], name: str, run: int, present: dict[str, int]) -> dict[str, NDArray[np.int64]]:
    """The present sizes first, then these with one dimension from `WINDOW` smaller to as much larger, by whole runs."""
    size = present[name]
    # Far away steps are coarse enough for a limited number of sizes.
    step = run * max(1, int(2 * WINDOW * size / run / MOST_SIZES))
    far = np.arange(max(step, int(size * (1 - WINDOW)) // step * step), size * (1 + WINDOW) + step, step)
    near = size // run * run + run * np.arange(-MOST_NEAR, MOST_NEAR + 1)
    near = near[(near > 0) & (np.abs(near - size) <= WINDOW * size + run)]
    around = np.array(sorted({*far.tolist(), *near.tolist()}), dtype=np.int64)
    moved = {each: around if each == name else np.full(len(around), sizes[each]) for each in sizes}
    return {each: np.concatenate([[present[each]], moved[each]]) for each in sizes}


def _against_the_first(
    prices: Prices, gpu: GpuSpec, tried: Mapping[str, NDArray[np.int64]], dtype: str, layout: str
) -> tuple[NDArray[np.float64], ...]:
    """Seconds, and work a second over that of the first sizes, with its bounds.

    The law errs at both independently. Where rows are better aligned and little else differs it errs alike, and what is
    known of alignment alone leaves the ratio open.
    """
    sizes = tried["M"], tried["N"], tried["K"]
    price = prices.gemm(layout, *sizes)
    seconds = np.asarray(price.seconds)
    below, above = (np.broadcast_to(side, seconds.shape) for side in price.margins)
    work = np.multiply.reduce([each.astype(np.float64) for each in sizes])
    ratio = work / work[0] * seconds[0] / seconds
    low, high = ratio * np.exp(-np.hypot(below[0], above)), ratio * np.exp(np.hypot(above[0], below))
    factor, least, most = (
        np.broadcast_to(each, seconds.shape) for each in alignment_penalty(gpu, *sizes, dtype, layout)
    )
    alike = (np.abs(work / work[0] - 1) <= LITTLE_GROWTH) & (factor < factor[0])
    low = np.where(alike, np.maximum(ratio * (least[0] / factor[0]) / (most / factor), np.minimum(ratio, 1.0)), low)
    high = np.where(alike, ratio * (most[0] / factor[0]) / (least / factor), high)
    return seconds, ratio, low, high


_NO_BETTER = "No size up to a quarter smaller or larger does its work faster by more than the law's error."
_VOCABULARY = " A vocabulary is only padded up."
_PADDED = f" Libraries take {{}} in rows of whole {NEEDED_BYTES} bytes only: the price is that of the padded product."
_EXTRAPOLATED = remark(
    "The law was not fitted on these sizes, this dtype or this GPU; it may err by more than it states.", kind="caution"
)


def _answer(product: ProductExplained) -> Remark:
    """The nearest larger size that wins, else the nearest smaller one, or that there is none."""
    if not product.better:
        return remark(_NO_BETTER, kind="predicted")
    nearest = min(product.better, key=lambda better: (better.has_less, abs(better.growth)))
    is_padded = product.dtype in PADDED_DTYPES and _odd_rows(product.sizes, product.dtype, product.layout)
    return remark(
        "{sizes} in place of {present}: {seconds} in place of {now} ({change}), {ratio} the work a second."
        "{vocabulary}{padded}",
        kind="predicted",
        sizes=" and ".join(f"{name} = {size}" for name, size in nearest.sizes.items()),
        present=" and ".join(map(str, nearest.present.values())),
        seconds=Quantity(nearest.seconds, "duration", predicted=True),
        now=Quantity(product.seconds, "duration", predicted=True),
        change=Quantity(nearest.seconds / product.seconds - 1, "+%", predicted=True),
        ratio=Quantity(nearest.rate_ratio, "x", nearest.low, nearest.high, predicted=True),
        vocabulary=_VOCABULARY if any(better.has_less for better in product.better) else "",
        padded=_PADDED.format(product.dtype) if is_padded else "",
    )


def _time(product: ProductExplained) -> Iterator[Remark]:
    price, seconds = product.price, product.seconds
    low, high = (math.nan, math.nan) if price.low is None else (float(price.low[0]), float(price.high[0]))
    yield remark(
        "C[{m},{n}] = A[{m},{k}] B[{k},{n}], {dtype} {layout} on {gpu}{by}: {time} under a sustained load, as in "
        "training ({rate}, {share} of the peak), {burst} in a burst.",
        kind="predicted",
        m=product.sizes["M"],
        n=product.sizes["N"],
        k=product.sizes["K"],
        dtype=product.dtype,
        layout=product.layout,
        gpu=product.spec.name,
        by=f" by {LIBRARY_NAMES.get(price.library, price.library)}" if price.library else "",
        time=Quantity(seconds, "duration", low, high, predicted=True),
        rate=Quantity(product.flop / seconds, "TFLOP/s", predicted=True),
        share=Quantity(product.compute_s / seconds, "%", predicted=True),
        burst=Quantity(seconds - product.causes.get("sustained", 0.0), "duration", predicted=True),
    )
    if price.low is None:
        yield remark("How far measurements lie from this is unknown: nothing similar was measured.", kind="caution")
    if product.others:
        yield remark(
            "The kernels of {libraries} as long.",
            kind="predicted",
            libraries=" and ".join(
                f"{LIBRARY_NAMES.get(name, name)} take {ratio:.2f} times" for name, ratio in product.others.items()
            ),
        )
    origin = f" ({price.origin})" if price.origin else ""
    if price.error_percent is None:
        yield remark("The law was compared with no measurement{origin}.", kind="law", origin=origin)
    else:
        yield remark(
            "The law errs by {error} on measurements that it was not fitted on{origin}.",
            kind="law",
            error=Quantity(price.error_percent / 100, "%"),
            origin=origin,
        )


def _tiles(product: ProductExplained) -> Remark:
    rows, columns, splits = product.tile
    m, n, _ = product.sizes.values()
    tiles_m, tiles_n, sms = -(-m // rows), -(-n // columns), product.spec.sms
    units = tiles_m * tiles_n * splits
    waves = -(-units // sms)
    return remark(
        "The library's likely tile is {rows}x{columns}: {tiles_m} x {tiles_n} tiles{split}, {waves} on {sms} "
        "multiprocessors, the last one {last} full; {area} of the tiles' area and {used} of the waves are used.",
        kind="predicted",
        rows=rows,
        columns=columns,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        split=f" x {splits} slices of K" if splits > 1 else "",
        waves=counted(waves, "wave"),
        sms=sms,
        last=Quantity(units / sms - (waves - 1), "%"),
        area=Quantity(m * n / (tiles_m * rows * tiles_n * columns), "%"),
        used=Quantity(units / (waves * sms), "%"),
    )


_STEPLESS = remark(
    "Steps in M are known on this GPU only between neighbours in the tables, as 512 and 513: elsewhere a row more may "
    "cost more than the law says.",
    kind="law",
)


def _bound(product: ProductExplained) -> Remark:
    """The lower bound of any kernel, with the prediction: few tiles may be slow though memory is not."""
    return remark(
        "It is bound by {what}: reading and writing once takes {memory}, computing {compute}, and the prediction is "
        "{times} the greater of the two ({intensity} FLOP a byte, where {gpu} turns at {turning}).",
        kind="predicted",
        memory=Quantity(product.memory_s, "duration", predicted=True),
        compute=Quantity(product.compute_s, "duration", predicted=True),
        what="computing" if product.compute_s >= product.memory_s else "memory",
        times=Quantity(product.seconds / max(product.memory_s, product.compute_s), "x", predicted=True),
        intensity=Quantity(product.flop / product.moved_bytes, "count"),
        gpu=product.spec.name,
        turning=Quantity(product.spec.peak(product.dtype) / product.spec.memory_bytes_per_s, "count"),
    )


def _alignment(product: ProductExplained) -> Remark:
    element = int(BYTES_OF[product.dtype])
    needed, best = elements_in(NEEDED_BYTES, element), elements_in(BEST_BYTES, element)
    divisors = {name: largest_power_of_two(size) for name, size in product.sizes.items()}
    # The dimensions that lie along rows of A, B or C as stored, whose divisibility counts.
    rows = {name: divisors[name] for name in "MNK" if name.lower() in SIDE_BY_SIDE[product.layout]}
    odd = sorted(_odd_rows(product.sizes, product.dtype, product.layout), key="MNK".index)
    fair = [name for name, divisor in rows.items() if needed <= divisor < best]
    if odd:
        verdict = f"below the {needed} that tensor cores and TMA take whole ({NEEDED_BYTES} bytes)"
    else:
        verdict = f"below the {best} that fill {BEST_BYTES} bytes" if fair else f"fill {BEST_BYTES} bytes"
    return remark(
        "Divisible: M by {m}, N by {n}, K by {k}; {names}, along which rows lie in memory, {verdict}.",
        m=divisors["M"],
        n=divisors["N"],
        k=divisors["K"],
        names=" and ".join(odd or fair or rows),
        verdict=verdict,
    )


CAUSES = (
    Column("cause", lambda row: row[0]),
    Column("time", lambda row: row[1], "us"),
    Column("share", lambda row: row[1] / row[2].seconds, "%"),
)
SIZES = (
    Column("dimension", lambda row: " and ".join(row[0].sizes)),
    Column("now", lambda row: " and ".join(map(str, row[0].present.values()))),
    Column("good size", lambda row: " and ".join(map(str, row[0].sizes.values()))),
    Column("larger by", lambda row: row[0].growth, "+%"),
    Column("time", lambda row: row[0].seconds, "us"),
    Column("time changes by", lambda row: row[0].seconds / row[1].seconds - 1, "+%"),
    Column("throughput", lambda row: Quantity(row[0].rate_ratio, "x", row[0].low, row[0].high, predicted=True), "x"),
)
