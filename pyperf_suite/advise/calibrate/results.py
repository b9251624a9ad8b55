"""Fits the laws to a short run on a machine of one's own: what the shipped law of its GPU misses there.

A hundred cases cannot replace a table of tens of thousands; they can move its law to this machine's clocks and library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.calibrate.cross_validation import HeldOutError, cross_validate, site_numbers, summary
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Block, Calibration, shipped_calibration
from pyperf_suite.laws.correction import DEGREES, correction, correction_name, fit_correction
from pyperf_suite.laws.matmul.gemm import BLOCK_OF, FITTED_DTYPES
from pyperf_suite.probes.calibration.predictions import DTYPE_OF_LAW, law_dtype, predicted_seconds
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.runner.results import RunFolder, open_run
from pyperf_suite.spec.rows import Reading, readings

FILE = "calibration.npz"
# The library that people really use, as timed; sizes that divide as those of the tables do, so that a penalty of
# misalignment is not taken for the machine's.
LIBRARIES = ("cublas", "sdpa_default")
DIVISIBLE_BY = 32
# Fewer sites say nothing of a slope that could be held out.
FEWEST_SITES = 8
# What each law's sizes are called in its block, and in the parameters of its operator.
SIZES_OF: Mapping[str, Mapping[str, str]] = {
    "matmul": {"m": "m", "n": "n", "k": "k"},
    "attention": {"batch": "batch", "seq_q": "seq_q", "heads": "heads", "head_dim": "head_dim"},
}


@dataclass(frozen=True)
class Corrected:
    """What a run said of one law: its error here before and after, the latter held out; `block` None where it fits."""

    law: str
    before: HeldOutError
    after: HeldOutError
    block: Block | None


def newest_run(results: Path, slug: str, probe: str = "calibration") -> RunFolder:
    """The newest run of a calibrating probe on a machine. Raises UserError that says how to make one."""
    for manifest in sorted((results / slug).glob("*/run.json"), reverse=True):
        try:
            run = open_run(manifest.parent)
        except UserError:
            continue  # a damaged neighbour is no reason not to find the right one
        if probe in run.manifest.get("probes", ()):
            return run
    raise UserError(
        f"There is no run to calibrate from in {results / slug}: make one with `pyperf-suite run {probe}`, which "
        "takes under two minutes."
    )


def corrections(spec: GpuSpec, records: Sequence[Record], origin: str) -> list[Corrected]:
    """What the law of a GPU misses in these records, law by law. Raises UserError where they hold too few sites."""
    by_law: dict[str, list[Reading]] = {}
    for reading in readings(records):
        if _is_usable(reading.case):
            by_law.setdefault(_law(reading.case), []).append(reading)
    enough = {law: found for law, found in by_law.items() if np.unique(_sites(found)).size >= FEWEST_SITES}
    if not enough:
        there = ", ".join(f"{len(found)} of {law}" for law, found in sorted(by_law.items())) or "none"
        raise UserError(
            f"Records of a GPU's library in at least {FEWEST_SITES} sizes are needed to calibrate, but there are "
            f"{there}: measure them with `pyperf-suite run calibration`."
        )
    return [_correct(spec, law, found, origin) for law, found in sorted(enough.items())]


def calibrated(spec: GpuSpec, found: Sequence[Corrected]) -> Calibration:
    """The shipped calibration of a GPU, or an empty one, with the corrections of this machine."""
    calibration = shipped_calibration(spec.name) or Calibration(spec.name)
    for each in found:
        if each.block is not None:
            calibration = calibration.with_block(correction_name(each.law), each.block)
    return calibration


def origin_of(run: RunFolder) -> str:
    """A run as a block names it."""
    identity = run.manifest.get("identity", {})
    return f"own run {run.run_id} on {identity.get('model', json.dumps(identity))}"


def _is_usable(case: Case) -> bool:
    """Whether a case tells of a GPU's library at sizes like those that laws are fitted to."""
    p = case.parameters
    if case.implementation not in LIBRARIES or case.mode != "burst" or DTYPE_OF_LAW.get(p.dtype) not in FITTED_DTYPES:
        return False
    if case.operator == "matmul":
        return bool(p.layout == "TN" and p.n % DIVISIBLE_BY == 0 and p.k % DIVISIBLE_BY == 0)
    return bool(p.causal and not p.backward and p.seq_q == p.keys)


def _law(case: Case) -> str:
    """The name of the block that prices a case."""
    dtype = law_dtype(case)
    return BLOCK_OF[dtype] if case.operator == "matmul" else f"attention_{dtype}"


def _sizes(found: Sequence[Reading]) -> dict[str, NDArray[np.int64]]:
    """One array a size, by its name in the law."""
    names = SIZES_OF[found[0].case.operator]
    return {
        name: np.array([getattr(reading.case.parameters, field) for reading in found], dtype=np.int64)
        for name, field in names.items()
    }


def _sites(found: Sequence[Reading]) -> NDArray[np.intp]:
    """A site of products is their weight (n, k); of attentions, everything."""
    sizes = _sizes(found)
    return site_numbers(*(sizes[name] for name in sizes if name != "m"))


def _correct(spec: GpuSpec, law: str, found: Sequence[Reading], origin: str) -> Corrected:
    """The correction of the degree that predicts held-out sites best, none where the law as it is does."""
    measured = np.array([reading.seconds for reading in found])
    predicted = predicted_seconds(spec, [reading.case for reading in found])
    sizes, sites = _sizes(found), _sites(found)
    log_ratio = np.log(measured / predicted)

    def fitted(rows: NDArray[np.intp], degree: int) -> Block:
        arrays, limits = fit_correction(log_ratio[rows], {name: size[rows] for name, size in sizes.items()}, degree)
        return Block(arrays, {}, limits, origin)

    def held_out(degree: int) -> HeldOutError:
        def fit(rows: NDArray[np.intp]):  # type: ignore[no-untyped-def]
            block = fitted(rows, degree)
            return lambda unseen: (
                predicted[unseen] * correction(block, {name: size[unseen] for name, size in sizes.items()})
            )

        return cross_validate(fit, measured, sites)

    before = summary(predicted, measured, np.unique(sites).size, "the law as shipped")
    errors = {degree: held_out(degree) for degree in DEGREES}
    best = min(DEGREES, key=lambda degree: errors[degree].mape)
    if errors[best].mape >= before.mape:
        return Corrected(law, before, before, None)
    whole = fitted(np.arange(measured.size), best)
    block = Block(whole.arrays, errors[best].to_json(), whole.fitted_range, origin)
    return Corrected(law, before, errors[best], block)
