"""The time of a matrix product on a GPU, and its causes.

The menu of tiles gives its course, a coarse residual what the library makes of it on that GPU; misaligned sizes and
running for seconds on end come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.calibration import POOLED, Block, Calibration, shipped_calibration, spec_of
from pyperf_suite.laws.correction import correction_of, stated
from pyperf_suite.laws.explained import Causes, Explained
from pyperf_suite.laws.matmul.alignment import SIDE_BY_SIDE, alignment_penalty
from pyperf_suite.laws.matmul.gemm_menu import MenuCoefficients, MenuTimes, Rates, menu_seconds, menu_times
from pyperf_suite.laws.matmul.residual_grid import ResidualGrid

MODES = ("burst", "sustained")
# Which block prices a dtype. Kernels for fp16 are those for bf16; the others have no tables of their own.
BLOCK_OF = {
    **dict.fromkeys(("bf16", "fp16", "tf32", "fp32"), "gemm_bf16"),
    **dict.fromkeys(("fp8", "int8", "fp4"), "gemm_fp8"),
}
FITTED_DTYPES = ("bf16", "fp16", "fp8")
# Larger sizes are no product's: beyond them their FLOP would no longer be counted exactly.
LARGEST_SIZE = 2**31
# Fastest bf16 product in a burst and sustained, TFLOP/s, by name in the catalogue (stas00/ml-engineering, mamf-finder
# tables: maximum achievable matmul FLOPS).
MAMF_TFLOP_PER_S = {
    "A100 PCIe": (285.0, 258.0),
    "H200 SXM": (850.0, 755.0),
    "B200 SXM": (1737.0, 1439.0),
    "MI300X": (676.0, 659.0),
}
# Below this share of the dense peak the H200 and B200 of ai-dynamo/aiconfigurator's tables run for a second as fast as
# in a burst.
UNCAPPED_UTILIZATION = 0.45
# A GPU that may draw more power than this times a measured one's is not held down as that one is: iterations of
# training on A100 SXM (400 W, vTrain's tables) take as long as bursts of their products, whose PCIe card has 300 W.
LIKE_POWER = 1.1

Gpu = str | GpuSpec | Calibration


@dataclass(frozen=True)
class GemmLaw:
    """What is known of one GPU's products of one dtype.

    `residual` is None where the law was transferred to a GPU or a dtype without measurements: nothing then says how
    far its library departs from the menu.
    """

    gpu: GpuSpec
    dtype: str
    coefficients: MenuCoefficients
    residual: ResidualGrid | None
    block: Block

    @property
    def rates(self) -> Rates:
        """The data sheet in the law's units. Raises UserError where the GPU has no units for the dtype."""
        return Rates.of(self.gpu, self.dtype)

    @property
    def origin(self) -> str:
        """The measurements behind the law, and whether they are this GPU's."""
        if self.residual is not None:
            return self.block.origin
        return f"transferred to {self.dtype} on {self.gpu.name} by its data sheet from {self.block.origin}"

    def seconds(self, m: NDArray[np.float64], n: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of an aligned product in a burst."""
        return menu_seconds(self.coefficients, self.rates, m, n, k) * self.library_factor(m, n, k)

    def library_factor(
        self, m: NDArray[np.float64], n: NDArray[np.float64], k: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What the library makes of the menu's time; 1 where it was not measured."""
        return np.ones(m.shape) if self.residual is None else np.exp(self.residual(m, n, k))

    def beyond_range(self, m: NDArray[np.float64], n: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Where the law was not fitted: sizes outside of the tables, a GPU or dtype without them."""
        beyond = np.full(m.shape, self.residual is None)
        for size, name in ((m, "m"), (n, "n"), (k, "k")):
            low, high = self.block.fitted_range[name]
            beyond |= (size < low) | (size > high)
        return beyond


def gemm_law(gpu: Gpu, dtype: str = "bf16") -> GemmLaw:
    """The law of a GPU by its name, its `GpuSpec` or a calibration; transferred where there is none of its own.

    Raises UserError for an unknown GPU or dtype, or one that the GPU has no units for.
    """
    if dtype not in BLOCK_OF:
        raise UserError(f"There is no law for products of {dtype!r}: choose from {', '.join(BLOCK_OF)}.")
    spec = spec_of(gpu)
    spec.peak(dtype)
    own = gpu if isinstance(gpu, Calibration) else shipped_calibration(spec.name)
    name = BLOCK_OF[dtype]
    if own is not None and name in own.blocks and dtype in FITTED_DTYPES:
        block = own.block(name)
        return GemmLaw(spec, dtype, _coefficients(block), ResidualGrid.from_arrays(block.arrays), block)
    pooled = shipped_calibration(POOLED)
    if pooled is None:
        raise UserError(
            f"No calibration of products is shipped for {spec.name}: fit one with `pyperf-suite calibrate`."
        )
    block = pooled.block(name)
    return GemmLaw(spec, dtype, _coefficients(block), None, block)


def gemm_time(
    gpu: Gpu,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    dtype: str = "bf16",
    layout: str = "TN",
    mode: str = "burst",
) -> Explained:
    """Seconds of products C[m, n] = A[m, k]·B[k, n] by the GPU's library, of the sizes' broadcast shape.

    The tables hold layout TN with random operands and a warm L2; the other layouts differ by alignment alone.
    The parts are `ideal` 2mnk at the peak, `tile` what edges of tiles and of K add, `kernel` the rest of a tile's time
    (rate below peak, prologue), `wave` SMs without a tile, `bandwidth` what memory adds, `split` reducing a split K,
    `launch`, `library` what its choice of kernel makes of that (negative where better), `alignment` and `sustained`.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`, whose corrections then count.
        m: rows of C, the tokens of a linear layer.
        n: columns of C, its outputs.
        k: the depth, its inputs.
        dtype: of the operands: fp32, tf32, fp16, bf16, fp8, int8 or fp4. Without tables are all but bf16 and fp8.
        layout: as in `workloads.matmul.parameters`, TN, NN, NT or TT.
        mode: burst, or sustained where products run for seconds on end and power holds the clock down.

    Raises:
        UserError: an unknown GPU, dtype, layout or mode, or sizes below 1.
    """
    if mode not in MODES:
        raise UserError(f"Unknown mode {mode!r}: choose from {', '.join(MODES)}.")
    if layout not in SIDE_BY_SIDE:
        raise UserError(f"There is no layout {layout!r}: ask for one of {', '.join(SIDE_BY_SIDE)}.")
    law = gemm_law(gpu, dtype)
    sizes = _sizes(m, n, k)
    here = np.ones(())
    if isinstance(gpu, Calibration):
        here = correction_of(gpu, BLOCK_OF[dtype], dict(zip("mnk", sizes, strict=True)))
    rows, columns, depth = (size.astype(np.int64) for size in sizes)
    penalty = alignment_penalty(law.gpu, rows, columns, depth, dtype, layout).factor
    plain = menu_seconds(law.coefficients, law.rates, *sizes)
    aligned = plain * law.library_factor(*sizes) * here
    burst = aligned * penalty
    seconds = burst * _slowdown(law, sizes, burst) if mode == "sustained" else burst

    def parts() -> dict[str, NDArray[np.float64]]:
        beyond = {"library": aligned - plain, "alignment": burst - aligned, "sustained": seconds - burst}
        return _menu_parts(law, sizes, menu_times(law.coefficients, law.rates, *sizes)) | beyond

    error_percent, origin = float(law.block.held_out["mape"]), law.origin
    if isinstance(gpu, Calibration):
        error_percent, origin = stated(gpu, BLOCK_OF[dtype], error_percent, origin)
    return Explained(seconds, Causes(parts), law.beyond_range(*sizes), error_percent, origin)


def _menu_parts(
    law: GemmLaw, sizes: tuple[NDArray[np.float64], ...], menu: MenuTimes
) -> dict[str, NDArray[np.float64]]:
    m, n, k = sizes
    ideal = 2.0 * m * n * k / law.rates.flop_per_s
    padded = menu.padded_flop / law.rates.flop_per_s
    together = menu.seconds - menu.split_s - law.coefficients.launch_s
    return {
        "ideal": ideal,
        "tile": padded - ideal,
        "kernel": menu.busy_s - padded,
        "wave": menu.compute_s - menu.busy_s,
        "bandwidth": together - menu.compute_s,
        "split": menu.split_s,
        "launch": np.full_like(ideal, law.coefficients.launch_s),
    }


def _slowdown(law: GemmLaw, sizes: tuple[NDArray[np.float64], ...], burst: NDArray[np.float64]) -> NDArray[np.float64]:
    m, n, k = sizes
    return sustained_slowdown(law.gpu, np.minimum(2.0 * m * n * k / law.rates.flop_per_s / burst, 1.0))


def sustained_slowdown(gpu: GpuSpec, utilization: ArrayLike) -> NDArray[np.float64]:
    """Sustained time over burst time, at least 1, of products by the share of their dtype's dense peak in a burst.

    That share, `utilization`, is 0 to 1, of any shape. The slowdown is 1 up to `UNCAPPED_UTILIZATION`, then rises
    straight to that of the GPU's fastest product (MAMF). A GPU without a figure has that of its architecture, if it has
    no more power; where there is none either the answer is 1: on an L40S a second's work was as fast as a burst.
    """
    known = _figure(gpu)
    share = np.asarray(utilization, dtype=np.float64)
    if known is None:
        return np.ones_like(share)
    measured, (burst, sustained) = known
    fastest = burst * 1e12 / measured.peak("bf16")
    return np.interp(share, [UNCAPPED_UTILIZATION, fastest], [1.0, burst / sustained])


def _figure(gpu: GpuSpec) -> tuple[GpuSpec, tuple[float, float]] | None:
    """The GPU's own figures, else those of the first of its architecture that has about as much power or more."""
    measured = [find_gpu(name) for name in MAMF_TFLOP_PER_S]
    alike = [
        other
        for other in measured
        if other.architecture == gpu.architecture and gpu.power_w <= LIKE_POWER * other.power_w
    ]
    chosen = next((other for other in alike if other.name == gpu.name), alike[0] if alike else None)
    return None if chosen is None else (chosen, MAMF_TFLOP_PER_S[chosen.name])


def _coefficients(block: Block) -> MenuCoefficients:
    return MenuCoefficients.from_arrays(block.arrays)


def _sizes(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    """The sizes as floats of one shape. Raises UserError for those that no product has."""
    try:
        sizes = tuple(np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k))))
    except (TypeError, ValueError):
        raise UserError("m, n and k have to be numbers, or arrays of shapes that broadcast together.") from None
    for name, size in zip("mnk", sizes, strict=True):
        wrong = ~((size >= 1) & (size <= LARGEST_SIZE))
        if np.any(wrong):
            raise UserError(
                f"A product cannot have {name} = {size[wrong].flat[0]:g}: give sizes of 1 to {LARGEST_SIZE}."
            )
    return sizes
