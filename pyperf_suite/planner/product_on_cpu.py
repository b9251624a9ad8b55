"""One matrix product measured on this machine's CPU and explained: peak, clock, tiles and waves of our own kernel."""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.errors import UserError, offer
from pyperf_suite.findings.data import Findings, Quantity, findings, remark
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.planner.laws.explained import counted
from pyperf_suite.planner.product_explained import TiledProduct
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import find_profile
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.backends import INSTRUCTION_SETS, CorePeak, core_peak, named_by_isa
from pyperf_suite.workloads.matmul import MatmulParameters

# A launch that takes longer even at the peak is no question for a second: it is measured by a run.
MOST_S = 5.0
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class ProductOnCpu:
    """C[m,n] = A[m,k]·B[k,n] as it ran in this process; `alone` is the peak of a core on its own, `peak` among all."""

    model: str
    m: int
    n: int
    k: int
    dtype: str
    layout: str
    workers: int
    seconds: float
    tile: Tile
    micro_tile: str
    peak: CorePeak
    alone: CorePeak

    @property
    def flop_per_s(self) -> float:
        return 2.0 * self.m * self.n * self.k / self.seconds

    @property
    def share_of_peak(self) -> float:
        return self.flop_per_s / (self.peak.flop_per_s * self.workers)

    @property
    def least_s(self) -> float:
        """What it takes if all cores multiply at their peak all the time."""
        return self.seconds * self.share_of_peak

    @property
    def tiled(self) -> TiledProduct:
        return TiledProduct(self.m, self.n, self.tile.m, self.tile.n, 1, self.workers)


def measure_product(
    m: int, n: int, k: int, dtype: str, layout: str, isa: str | None, workers: int | None
) -> ProductOnCpu:
    """Measure the product with our own kernel, by default on every core. Takes about a second.

    Raises UserError for a dtype, instruction set or number of workers that is not to be had here.
    """
    if dtype not in DTYPES:
        raise UserError(f"Our CPU kernels multiply no {dtype}: choose --dtype {', '.join(DTYPES)}.")
    if isa is not None and isa not in INSTRUCTION_SETS:
        raise UserError(f"--isa {isa[:40]} is not known: {offer(isa, INSTRUCTION_SETS)}")
    workers = workers or cpu.detect().usable_cores
    schedule = Schedule("data_parallel", workers)
    parameters = MatmulParameters(m, n, k, schedule, dtype=DTYPES[dtype], layout=layout)
    case = Case("matmul", parameters, named_by_isa(isa or ""))
    case.validate()
    least_s = 2.0 * m * n * k / (core_peak(DTYPES[dtype], isa, workers).flop_per_s * workers)
    if least_s > MOST_S:
        raise UserError(
            f"One product of {m} x {n} x {k} takes at least {least_s:.0f} s on {counted(workers, 'core')} here: ask "
            f"for a smaller one, or measure it with `pyperf-suite run baseline -a shape={m}x{n}x{k}`."
        )
    answer = measure_case(case, find_profile("quick").effort, resolve("cpu"))
    if answer["outcome"] != "ok":
        raise UserError(f"{case.label} was not measured: {answer['reason']}")
    details = answer["kernel"]["details"]
    peak = core_peak(DTYPES[dtype], details["isa"], workers)
    return ProductOnCpu(
        cpu.detect().model,
        m,
        n,
        k,
        dtype,
        layout,
        workers,
        answer["metrics"]["time"]["value"],
        Tile.parse(details["tile"]),
        details["micro_tile"],
        peak,
        peak if workers == 1 else core_peak(DTYPES[dtype], details["isa"]),  # each look may see a better one
    )


def findings_of_product(product: ProductOnCpu) -> Findings:
    """Its time and share of the peak, the clock it is multiplied at, and how it is cut."""
    peak, alone = product.peak, product.alone
    return findings(
        remark(
            "C[{m},{n}] = A[{m},{k}] B[{k},{n}], {dtype} {layout} on {cores} of {model}, by our {isa} kernel ({unit}): "
            "{time}, {rate}, {share} of the peak.",
            product,
            cores=counted(product.workers, "core"),
            isa=peak.isa,
            unit=peak.unit,
            time=Quantity(product.seconds, "duration"),
            rate=Quantity(product.flop_per_s, "TFLOP/s"),
            share=Quantity(product.share_of_peak, "%"),
        ),
        remark(
            "A core multiplies {alone} at most, {cycle} FLOP a cycle at {clock} GHz"
            + (", and {together} while all {workers} do" if product.workers > 1 else "")
            + ": at that rate the product takes {least}.",
            product,
            alone=Quantity(alone.flop_per_s, "TFLOP/s"),
            cycle=f"{alone.flop_per_cycle:.1f}",
            clock=f"{alone.clock_hz / 1e9:.2f}",
            together=Quantity(peak.flop_per_s, "TFLOP/s"),
            least=Quantity(product.least_s, "duration"),
        ),
        remark(
            "{unit} lowers the clock: plain integers run at {idle} GHz.",
            unit=alone.unit,
            idle=f"{alone.idle_clock_hz / 1e9:.2f}",
        )
        if alone.lowers_clock
        else None,
        remark(
            "Its tile is {tile}, of register tiles of {micro_tile}: {cut}, {turns}; {area} of the tiles' area and "
            "{used} of the waves are used.",
            product,
            cut=counted(product.tiled.units, "tile"),
            turns=counted(product.tiled.waves, "wave"),
            area=Quantity(product.tiled.tile_efficiency, "%"),
            used=Quantity(product.tiled.wave_efficiency, "%"),
        ),
    )
