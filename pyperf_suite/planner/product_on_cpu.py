"""One matrix product measured on this machine's CPU and explained: peak, clock, tiles and waves of our own kernel."""

from __future__ import annotations

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, Quantity, findings, remark
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.planner.laws.explained import counted
from pyperf_suite.planner.product_explained import TiledProduct
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import find_profile
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.backends import core_peak, named_by_isa
from pyperf_suite.workloads.matmul import MatmulParameters

# A launch that takes longer even at the peak is no question for a second: it is measured by a run.
MOST_S = 5.0
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def measured_product(m: int, n: int, k: int, dtype: str, layout: str) -> Findings:
    """Measure C[m,n] = A[m,k]·B[k,n] with our own kernel on every core, in about a second.

    Raises UserError for a dtype that our kernels do not have, and for a product that takes too long.
    """
    if dtype not in DTYPES:
        raise UserError(f"Our CPU kernels multiply no {dtype}: choose --dtype {', '.join(DTYPES)}.")
    machine = cpu.detect()
    workers = machine.usable_cores
    parameters = MatmulParameters(m, n, k, Schedule("data_parallel", workers), dtype=DTYPES[dtype], layout=layout)
    case = Case("matmul", parameters, named_by_isa(""))
    case.validate()
    flop = 2.0 * m * n * k
    least_s = flop / (core_peak(DTYPES[dtype], None, workers).flop_per_s * workers)
    if least_s > MOST_S:
        raise UserError(
            f"One product of {m} x {n} x {k} takes at least {least_s:.0f} s on {counted(workers, 'core')} here: ask "
            f"for a smaller one, or measure it with `pyperf-suite run baseline -a shape={m}x{n}x{k}`."
        )
    answer = measure_case(case, find_profile("quick").effort, resolve("cpu"))
    if answer["outcome"] != "ok":
        raise UserError(f"{case.label} was not measured: {answer['reason']}")
    seconds, details = answer["metrics"]["time"]["value"], answer["kernel"]["details"]
    # Each look may see a better one.
    peak = core_peak(DTYPES[dtype], details["isa"], workers)
    least_s = flop / (peak.flop_per_s * workers)
    tile = Tile.parse(details["tile"])
    tiled = TiledProduct(m, n, tile.m, tile.n, 1, workers)
    return findings(
        remark(
            "C[{m},{n}] = A[{m},{k}] B[{k},{n}], {dtype} {layout} on {cores} of {model}, by our {isa} kernel ({unit}): "
            "{time}, {rate}, {share} of the peak.",
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            layout=layout,
            model=machine.model,
            cores=counted(workers, "core"),
            isa=peak.isa,
            unit=peak.unit,
            time=Quantity(seconds, "duration"),
            rate=Quantity(flop / seconds, "TFLOP/s"),
            share=Quantity(least_s / seconds, "%"),
        ),
        remark(
            "While all multiply, a core has {peak} at most, {cycle} FLOP a cycle at {clock} GHz: at that rate the "
            "product takes {least}.",
            peak=Quantity(peak.flop_per_s, "TFLOP/s"),
            cycle=f"{peak.flop_per_cycle:.1f}",
            clock=f"{peak.clock_hz / 1e9:.2f}",
            least=Quantity(least_s, "duration"),
        ),
        remark(
            "Its tile is {tile}, of register tiles of {micro_tile}: {cut}, {turns}; {area} of the tiles' area and "
            "{used} of the waves are used.",
            tile=details["tile"],
            micro_tile=details["micro_tile"],
            cut=counted(tiled.units, "tile"),
            turns=counted(tiled.waves, "wave"),
            area=Quantity(tiled.tile_efficiency, "%"),
            used=Quantity(tiled.wave_efficiency, "%"),
        ),
    )
