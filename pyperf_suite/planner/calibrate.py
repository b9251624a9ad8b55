"""A calibration from one run: what a GPU's laws miss on this machine.

Each law is corrected by a smooth factor, if it then errs less on what the fit did not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.alpha_beta import FOLDS
from pyperf_suite.planner.laws.calibration import (
    DEGREES,
    Calibration,
    CalibrationBlock,
    correction,
    correction_name,
    fit_correction,
    shipped_calibration,
)
from pyperf_suite.planner.laws.gemm import BLOCK_OF, FITTED_DTYPES
from pyperf_suite.planner.probes.calibration import DTYPE_OF_LAW, law_dtype, predicted_seconds
from pyperf_suite.record.reading import Reading, readings
from pyperf_suite.record.record import Record
from pyperf_suite.runner.results import RunFolder, read_run

SEED = 0


@dataclass(frozen=True)
class HeldOutError:
    """Error of predictions: |predicted / measured − 1| in %, its mean and its median."""

    mape: float
    median: float
    rows: int
    sites: int
    how: str

    def to_json(self) -> dict[str, float | int | str]:
        return vars(self) | {"mape": round(self.mape, 3), "median": round(self.median, 3)}


def site_numbers(*sizes: ArrayLike) -> NDArray[np.intp]:
    """A number for each row, equal where all of these sizes are, as n and k of products."""
    columns = np.stack([np.asarray(size) for size in sizes], axis=1)
    numbers: NDArray[np.intp] = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def folds(sites: ArrayLike, seed: int = SEED) -> Iterator[NDArray[np.bool_]]:
    """Masks of the rows that are held out, one a fold; each site is held out in exactly one.

    Raises ValueError for a single site, which leaves nothing to predict it from.
    """
    numbers = np.asarray(sites)
    there = np.unique(numbers)
    if there.size < 2:
        raise ValueError("holding out takes at least two sites")
    for held_out in np.array_split(np.random.default_rng(seed).permutation(there), min(FOLDS, there.size)):
        yield np.isin(numbers, held_out)


def error_percent(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """|predicted / measured − 1| of each row in %."""
    return np.abs(np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64) - 1) * 100


def summary(predicted: ArrayLike, measured: ArrayLike, sites: int, how: str) -> HeldOutError:
    """The errors of rows that were predicted unseen."""
    errors = error_percent(predicted, measured)
    return HeldOutError(float(errors.mean()), float(np.median(errors)), errors.size, sites, how)


def described(held_out: Mapping[str, float | int | str]) -> str:
    """A block's held-out error in words, as in `4.3 % (median 2.7 %) on 180 sites, 5-fold, whole sites held out`."""
    if "mape" not in held_out:
        return "not held out"
    median = f" (median {float(held_out['median']):.1f} %)" if "median" in held_out else ""
    sites = f" on {held_out['sites']} sites" if "sites" in held_out else ""
    how = f", {held_out['how']}" if held_out.get("how") else ""
    return f"{float(held_out['mape']):.1f} %{median}{sites}{how}"


FILE = "calibration.npz"
# The library that people really use, as timed; sizes that divide as those of the tables do, so that a penalty of
# misalignment is not taken for the machine's.
LIBRARIES = ("cublas", "sdpa_default")
DIVISIBLE_BY = 32
# Fewer sites say nothing of a slope that could be held out.
FEWEST_SITES = 8
# The sizes of each law, as the parameters of its operator call them.
SIZES_OF = {"matmul": ("m", "n", "k"), "attention": ("batch", "seq_q", "heads", "head_dim")}


@dataclass(frozen=True)
class Corrected:
    """Error of one law in a run, before and after correction, the latter held out; `block` None where it fits."""

    law: str
    before: HeldOutError
    after: HeldOutError
    block: CalibrationBlock | None

    def to_json(self) -> dict[str, Any]:
        errors = {"before": self.before.to_json(), "after": self.after.to_json()}
        return {"law": self.law, **errors, "changed": self.block is not None}


def newest_run(results: Path, slug: str) -> RunFolder:
    """The newest calibrating run on a machine that can be read. Raises UserError that says how to make one."""
    for manifest in sorted((results / slug).glob("*/run.json"), reverse=True):
        try:
            run = read_run(manifest.parent)
        except UserError:
            continue
        if "calibration" in run.manifest.get("probes", ()):
            return run
    raise UserError(
        f"There is no run to calibrate from in {results / slug}: make one with `pyperf-suite run calibration`, which "
        "takes under two minutes."
    )


def corrections(spec: GpuSpec, records: Iterable[Record], origin: str) -> list[Corrected]:
    """Fit what each law of a GPU misses in these records. Raises UserError where they hold too few sites."""
    by_law: dict[str, list[Reading]] = {}
    for reading in readings(records):
        case, p = reading.case, reading.case.parameters
        if case.implementation not in LIBRARIES or case.mode != "burst":
            continue
        if DTYPE_OF_LAW.get(p.dtype) not in FITTED_DTYPES:
            continue
        # Sizes like those that laws are fitted to.
        if case.operator == "matmul":
            law = BLOCK_OF[law_dtype(case)]
            similar = p.layout == "TN" and p.n % DIVISIBLE_BY == 0 and p.k % DIVISIBLE_BY == 0
        else:
            law, similar = f"attention_{law_dtype(case)}", p.causal and not p.backward and p.seq_q == p.keys
        if similar:
            by_law.setdefault(law, []).append(reading)
    enough = {law: found for law, found in by_law.items() if np.unique(_sites(found)).size >= FEWEST_SITES}
    if not enough:
        there = ", ".join(f"{len(found)} of {law}" for law, found in sorted(by_law.items())) or "none"
        raise UserError(
            f"Records of a GPU's library in at least {FEWEST_SITES} sizes are needed to calibrate, but there are "
            f"{there}: measure them with `pyperf-suite run calibration`."
        )
    return [_correct(spec, law, found, origin) for law, found in sorted(enough.items())]


def calibrated(spec: GpuSpec, corrections: Sequence[Corrected]) -> Calibration:
    """The shipped calibration of a GPU, or an empty one, with the corrections of this machine."""
    calibration = shipped_calibration(spec.name) or Calibration(spec.name)
    for each in corrections:
        if each.block is not None:
            calibration = calibration.with_block(correction_name(each.law), each.block)
    return calibration


def _sizes(measured: Sequence[Reading]) -> dict[str, NDArray[np.int64]]:
    names = SIZES_OF[measured[0].case.operator]
    return {name: np.array([getattr(reading.case.parameters, name) for reading in measured]) for name in names}


def _sites(measured: Sequence[Reading]) -> NDArray[np.intp]:
    """A site of products is their weight (n, k); of attentions, everything."""
    sizes = _sizes(measured)
    return site_numbers(*(sizes[name] for name in sizes if name != "m"))


def _correct(spec: GpuSpec, law: str, readings: Sequence[Reading], origin: str) -> Corrected:
    """The correction of the degree that predicts held-out sites best, none where the law as it is does."""
    measured = np.array([reading.seconds for reading in readings])
    predicted = predicted_seconds(spec, [reading.case for reading in readings])
    sizes, sites = _sizes(readings), _sites(readings)
    log_ratio, there = np.log(measured / predicted), np.unique(sites).size

    def fitted(rows: NDArray[Any], degree: int) -> CalibrationBlock:
        arrays, limits = fit_correction(log_ratio[rows], {name: size[rows] for name, size in sizes.items()}, degree)
        return CalibrationBlock(arrays, {}, limits, origin)

    before = summary(predicted, measured, there, "the law as shipped")
    how, errors = f"{min(FOLDS, there)}-fold, whole sites held out", {}
    for degree in DEGREES:
        seconds = predicted.copy()
        for unseen in folds(sites):
            block = fitted(~unseen, degree)
            seconds[unseen] *= correction(block, {name: size[unseen] for name, size in sizes.items()})
        errors[degree] = summary(seconds, measured, there, how)
    best = min(DEGREES, key=lambda degree: errors[degree].mape)
    if errors[best].mape >= before.mape:
        return Corrected(law, before, before, None)
    block = replace(fitted(np.arange(measured.size), best), held_out=errors[best].to_json())
    return Corrected(law, before, errors[best], block)
